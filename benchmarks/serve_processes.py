"""Servers as child processes: started, watched, measured, and ended with all that they started.

with Running(command, port, log) as server:      the port was free, the server is its own session
    server.wait(path, timeout_s)                 until it answers; RunError with the last lines of its log where it does not
    server.tree()                                it and what descends from it, with CPU seconds and resident bytes of each
                                                 on leaving: SIGTERM, then SIGKILL for every process that is left, and the port is free
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from systems import RunError

HOST = "127.0.0.1"
TICKS_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TERM_S, KILL_S = 15.0, 10.0
POLL_S, ANSWER_S = 0.25, 10.0
TAIL_BYTES, TAIL_LINES = 4000, 5
STARTED_AT = 19
"""Of the fields of proc(5) stat that follow the name: when the process started, which tells it from another with its number."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process at one moment."""

    pid: int
    parent: int
    started: int
    command: str
    cpu_s: float
    """Of itself and of its children that have ended."""
    rss_bytes: int


def processes() -> dict[int, Process]:
    """All of this machine that can be read, by number."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                text = (folder / "stat").read_text()
                fields = text[text.rindex(")") + 2 :].split()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                pid, cpu_s = int(folder.name), sum(map(int, fields[11:15])) / TICKS_S
                rss = int(fields[21]) * PAGE_BYTES
                found[pid] = Process(pid, int(fields[1]), int(fields[STARTED_AT]), command, cpu_s, rss)
    return found


def tree_of(root: int) -> list[Process]:
    """A process and all that descend from it."""
    everyone = processes()
    members, left = [], [root]
    while left:
        pid = left.pop()
        if pid in everyone:
            members.append(everyone[pid])
        left += [p.pid for p in everyone.values() if p.parent == pid]
    return members


def end_in_order() -> None:
    """Let SIGTERM end this process as an interrupt does, so that servers go with it; another one does not break that off."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


class Running:
    """A server that runs while its context is open."""

    def __init__(self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str], metrics_port: int = 0):
        self._command, self._log, self._environment = command, log, {**os.environ, **environment}
        self.port, self.url = port, f"http://{HOST}:{port}"
        self.metrics_url = f"http://{HOST}:{metrics_port}"
        """Of rayplane's own exporter."""
        self.start_s = 0.0
        """How long it took to answer."""

    def __enter__(self) -> Running:
        with self._log.open("wb") as log:
            # Its own session: an interrupt here reaches this process alone, which then ends the server in order.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._log.parent,
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        members = self.tree()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        if not _until(lambda: self._process.poll() is not None and not _alive(members), TERM_S):
            for number in (*(p.pid for p in _alive(members)), *(p.pid for p in self.tree())):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(number, signal.SIGKILL)
            self._process.wait(KILL_S)
        if not _until(lambda: not _alive(members) and self._is_free(), KILL_S):
            raise RunError(f"{self._command[0]} has left processes or its port {self.port} behind")

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def tree(self) -> list[Process]:
        """It, and what descends from it."""
        return tree_of(self._process.pid)

    def wait(self, path: str, timeout_s: float) -> None:
        """Until a path answers with 200. RunError when the server ends before that, or takes too long."""
        began_s = time.monotonic()
        while not self._answers(path):
            if self._process.poll() is not None:
                raise RunError(f"ended with code {self._process.returncode}: {self.last_words()}")
            if time.monotonic() - began_s > timeout_s:
                raise RunError(f"did not answer within {timeout_s:.0f} s: {self.last_words()}")
            time.sleep(POLL_S)
        self.start_s = time.monotonic() - began_s

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines if line.strip())[-TAIL_BYTES // TAIL_LINES :]

    def _answers(self, path: str) -> bool:
        # Anything but 200 raises: errors of HTTP and of connections are both OSErrors.
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(self.url + path, timeout=ANSWER_S):
            return True
        return False

    def _is_free(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) != 0


def _alive(members: Sequence[Process]) -> list[Process]:
    """Those that have not ended; one that only waits to be reaped has."""
    now = processes()
    return [p for p in members if p.pid in now and now[p.pid].started == p.started and now[p.pid].rss_bytes]


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True
