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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rayplane.runtime.group import Launch, Message
from rayplane.runtime.lines import LineBuffer

SEND_TIMEOUT_S = 5.0
"""A rank that takes no message for so long is stuck and killed."""
REAP_TIMEOUT_S = 10.0
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
    lease: str
    """ATTEMPT:PATH, or nothing."""
    environment: Mapping[str, str]
    """Set on top of the owner's own."""


def rank_spec(launch: Launch, rank: int, gpu: str) -> RankSpec:
    """A rank of a launch; on CUDA it sees the one GPU `gpu` only, on CPU it has a thread for each of its cores."""
    environment = {"CUDA_VISIBLE_DEVICES": gpu} if launch.device == "cuda" else {"OMP_NUM_THREADS": str(max(1, launch.cores))}
    lease = f"{launch.lease.attempt}:{launch.lease.path}" if launch.lease else ""
    directory = launch.directory if Path(launch.directory).is_dir() else ""
    return RankSpec(rank, launch.name, launch.entry, launch.log_dir, directory, lease, environment)


def exit_message(code: int, log: str) -> Message:
    """What the owner says when a rank's process has ended; `code` is -N after signal N."""
    return {"type": "exit", "code": code, "signal": max(0, -code), "log": log}


class RankProcess:
    """A running rank. It lives in its own process group, so that a Ctrl-C at the terminal reaches its owner only."""

    def __init__(self, spec: RankSpec):
        self.rank = spec.rank
        self.hung_up = False
        """Whether the rank has closed its end."""
        self._lines = LineBuffer()
        self._sending = threading.Lock()
        self._log_path = Path(spec.log_dir) / f"rank-{spec.rank:04d}.log" if spec.log_dir else None
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
                        spec.lease,
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
        if self._log_path is None:
            return Path(os.devnull).open("wb")
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        return self._log_path.open("ab")

    def _log_tail(self) -> str:
        """The last lines this process wrote; the file may also hold those of earlier attempts."""
        if self._log_path is None:
            return ""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - LOG_TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return ""
