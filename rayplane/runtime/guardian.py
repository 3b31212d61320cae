"""A process that outlives its owner by a moment, to end what the owner leaves behind.

    owner ──pipe──▶ guardian: the pipe closes when the owner is gone, however it went ──SIGKILL──▶ the processes it was given

An embedded Ray needs it: when its driver is killed its servers die at once, but the agents of its node try for a minute to report that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path


def guard(pids: Iterable[int]) -> None:
    """End these processes when the calling process is gone."""
    read_end, write_end = os.pipe()
    assert not os.get_inheritable(write_end), "it closes when this process is gone: no child may hold it too"
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "rayplane.runtime.guardian", *map(str, pids)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        setsid=True,
    )
    os.close(read_end)


def descendants(pid: int) -> set[int]:
    """Process ids of the children of a process, and of theirs."""
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    found, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


def end(pids: Iterable[int]) -> None:
    """SIGKILL these processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parent(process: Path) -> int:
    with contextlib.suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def main() -> None:
    """`argv`: process ids. They are held as descriptors, so that a number used anew means nothing."""
    processes = []
    for pid in map(int, sys.argv[1:]):
        with contextlib.suppress(ProcessLookupError):
            processes.append(os.pidfd_open(pid))
    sys.stdin.buffer.read()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
