"""A process that outlives its owner by a moment, to end what the owner leaves behind.

    owner ──pipe──▶ guardian: the pipe closes when the owner is gone, however it went ──SIGKILL──▶ every process with the owner's mark
      └──environment: the mark──▶ a process started meanwhile ──▶ those that it starts

An embedded Ray needs it: when its driver is killed, a server that was just being started lives on, and so do workers and agents whose
server died before they knew it. Nobody can list them in time, but all of them inherit the mark. Some then write their title over it
(setproctitle does), which is why the guardian also keeps in mind who has descended from the owner.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Known = frozenset[tuple[int, int]]
"""Processes by number and the tick in which they began, which no other will have again."""
MARK = "RAYPLANE_OWNER"
"""The environment variable that carries an owner's mark."""
LOOK_S = 1.0
"""Between looks at the owner's descendants while it lives."""
LOOK_AGAIN_S = 0.05
QUIET_S = 0.5
"""A process that is just being started has no environment for a moment: nothing must be found for so long."""
END_TIMEOUT_S = 10.0
"""What is blocked in the kernel cannot be waited for."""


@contextmanager
def guarded() -> Iterator[str]:
    """Processes that are started inside, and those that they start whenever, end when the calling process is gone. Gives their mark."""
    mark, before = uuid.uuid4().hex, os.environ.get(MARK)
    _start_guardian(mark)
    os.environ[MARK] = mark
    try:
        yield mark
    finally:
        del os.environ[MARK]
        if before is not None:
            os.environ[MARK] = before


def end(mark: str, known: Known = frozenset()) -> None:
    """SIGKILL every process that bears a mark or is `known`, and what it has started, until none is left."""
    began_s = found_s = time.monotonic()
    while (now_s := time.monotonic()) - found_s < QUIET_S and now_s - began_s < END_TIMEOUT_S:
        if _kill_all(mark, known):
            found_s = time.monotonic()
        time.sleep(LOOK_AGAIN_S)


def _start_guardian(mark: str) -> None:
    read_end, write_end = os.pipe()
    assert not os.get_inheritable(write_end), "it closes when this process is gone: no child may hold it too"
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "rayplane.runtime.guardian", mark],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        setsid=True,
    )
    os.close(read_end)


def _kill_all(mark: str, known: Known) -> bool:
    """SIGKILL all that is there now; whether there was anything."""
    parents = _parents()
    found = _with_descendants({pid for pid in parents if _is_ours(pid, mark, known)}, parents)
    # Held as descriptors while all of them live, so that a number that is used anew means nothing.
    held = {pid: process for pid in found if (process := _open(pid)) is not None}
    ours = [process for pid, process in held.items() if _is_ours(pid, mark, known) or _stat(pid)[0] in held]
    for process in ours:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    for process in held.values():
        os.close(process)
    return bool(ours)


def _family(owner: int, mark: str, known: Known) -> Known:
    """Who of the owner's descendants lives under the guard: with the mark, known before, or started by one of these."""
    parents = _parents()
    below = _with_descendants({owner}, parents) - {owner, os.getpid()}
    ours = _with_descendants({pid for pid in below if _is_ours(pid, mark, known)}, parents)
    return frozenset((pid, began) for pid in ours if (began := _stat(pid)[1]))


def _with_descendants(pids: set[int], parents: dict[int, int]) -> set[int]:
    found, new = set[int](), pids
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in found} - found
    return found


def _parents() -> dict[int, int]:
    return {int(p.name): _stat(int(p.name))[0] for p in Path("/proc").iterdir() if p.name.isdigit()}


def _is_ours(pid: int, mark: str, known: Known) -> bool:
    if (pid, _stat(pid)[1]) in known:
        return True
    with contextlib.suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _stat(pid: int) -> tuple[int, int]:
    """(parent, when it began, in ticks since the machine did); zeros when it is gone, or has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return int(fields[1]), int(fields[19])
    return 0, 0


def _open(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def main() -> None:
    """`argv`: the mark. Standard input ends with the owner."""
    owner, known = os.getppid(), Known()
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        known = _family(owner, sys.argv[1], known)
    end(sys.argv[1], known)


if __name__ == "__main__":
    main()
