"""One rank's process, seen from its owner: its socket, its log file and its end.

spawn ──▶ read / send ──▶ ended (reaped, with the last lines of its log) ──▶ close
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from rayplane.runtime.group import Launch, Message
from rayplane.runtime.lines import LineBuffer

SEND_TIMEOUT_S = 5.0
"""A rank that takes no message for so long is stuck and killed."""
REAP_TIMEOUT_S = 10.0
STOPPED_S = 2.0
"""A process that stands stopped (SIGSTOP) for so long counts as failed: its peers wait for it."""
READ_BYTES = 2**18
LOG_TAIL_BYTES = 4096
LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What to run as one rank."""

    rank: int
    job: str
    entry: str
    log_dir: str
    directory: str
    """Where to run."""
    environment: Mapping[str, str]
    """Set on top of the owner's own."""


def rank_spec(launch: Launch, rank: int, gpu: str) -> RankSpec:
    """A rank of a launch; on CUDA it sees the one GPU `gpu` only, on CPU it has a thread for each of its cores."""
    environment = {"CUDA_VISIBLE_DEVICES": gpu} if launch.device == "cuda" else {"OMP_NUM_THREADS": str(max(1, launch.cores))}
    directory = launch.directory if Path(launch.directory).is_dir() else ""
    return RankSpec(rank, launch.name, launch.entry, launch.log_dir, directory, environment)


def log_path(log_dir: str, rank: int) -> str:
    """The file that takes a rank's output; empty where it is dropped."""
    return str(Path(log_dir) / f"rank-{rank:04d}.log") if log_dir else ""


def successors(parked: Mapping[int, RankSpec], wanted: Sequence[RankSpec]) -> dict[int, int]:
    """{a wanted rank: the parked rank whose process it gets}: its own, else one that differs in its number only."""
    own = {spec.rank: spec.rank for spec in wanted if parked.get(spec.rank) == spec}
    free = {rank: spec for rank, spec in sorted(parked.items()) if rank not in own}
    for spec in wanted:
        fitting = [] if spec.rank in own else [rank for rank, other in free.items() if replace(other, rank=spec.rank) == spec]
        if fitting:
            own[spec.rank] = fitting[0]
            del free[fitting[0]]
    return own


def exit_message(code: int, log: str) -> Message:
    """What the owner says when a rank's process has ended; `code` is -N after signal N."""
    return {"type": "exit", "code": code, "signal": max(0, -code), "log": log}


class RankProcess:
    """A running rank. It lives in its own process group, so that a Ctrl-C at the terminal reaches its owner only."""

    def __init__(self, spec: RankSpec):
        self.rank, self.spec = spec.rank, spec
        self.hung_up = False
        """Whether the rank has closed its end."""
        self.parked = False
        """Whether it has left its attempt and waits for another."""
        self._stopped_at_s: float | None = None
        self._lines = LineBuffer()
        self._sending = threading.Lock()
        self._log_path = log_path(spec.log_dir, spec.rank)
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            self._socket.settimeout(SEND_TIMEOUT_S)
            with self._open_log() as log:
                self._log_start = os.fstat(log.fileno()).st_size
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "rayplane.runtime.child",
                        f"{spec.job}/{spec.rank}",
                        spec.entry,
                        "--fd",
                        str(theirs.fileno()),
                    ],
                    pass_fds=(theirs.fileno(),),
                    cwd=spec.directory or None,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **spec.environment, "PYTHONUNBUFFERED": "1"},
                    process_group=0,
                )
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id, of the leader and of its group."""
        return self._process.pid

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def rejoin(self, spec: RankSpec) -> None:
        """Take part in another attempt, maybe as another rank; the process changes to that one's log when it joins."""
        self.rank, self.spec, self.parked = spec.rank, spec, False
        path = log_path(spec.log_dir, spec.rank)
        if path != self._log_path:
            self._log_path, self._log_start = path, Path(path).stat().st_size if Path(path).exists() else 0

    def read(self) -> list[Message]:
        """The messages that have come whole. Raises StreamError."""
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError:
            data = b""
        self.hung_up = not data
        return self._lines.feed(data) if data else []

    def send(self, message: Message) -> None:
        """Hand over a message; a rank that is dead is passed over, one that takes nothing is killed."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            try:
                self._socket.sendall(line)
            except TimeoutError:
                self.kill()
            except OSError:
                return

    def ended(self) -> Message | None:
        """The exit message once the process has ended, else None."""
        code = self._process.poll()
        if code is None:
            return None
        self._kill_group()
        with self._sending:
            self._socket.settimeout(0)
        return exit_message(code, self._log_tail())

    def stopped(self, now_s: float) -> bool:
        """Whether it has been stopped by a signal for STOPPED_S, on the caller's clock. What a debugger holds is not."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state != "T":
            self._stopped_at_s = None
        elif self._stopped_at_s is None:
            self._stopped_at_s = now_s
        return self._stopped_at_s is not None and now_s - self._stopped_at_s >= STOPPED_S

    def kill(self) -> None:
        """SIGKILL the rank and what it started."""
        if self._process.poll() is None:
            self._kill_group()

    def close(self) -> bool:
        """Reap a killed process and free its socket; False when it does not die."""
        with self._sending:
            self._socket.close()
        try:
            self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _open_log(self) -> IO[bytes]:
        if not self._log_path:
            return Path(os.devnull).open("wb")
        path = Path(self._log_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")

    def _log_tail(self) -> str:
        """The last lines this process wrote; the file may also hold those of earlier attempts."""
        if not self._log_path:
            return ""
        with contextlib.suppress(OSError), Path(self._log_path).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - LOG_TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return ""
