"""Where commands print for people: plain text, as wide as it gets when nobody sees it on a terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 200
"""Columns of a table that goes to a file or a pipe, where nothing should be cut."""


class Screen(Console):
    """A console that outlives its reader: a pipe that is closed and a disk that is full stop no job."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())  # what is still in the stream's buffer goes there at the end


def screen(stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    console = Screen(stderr=stderr)
    if not console.is_terminal:
        console.width = WIDE
    return console


def say(console: Console, text: str | Text) -> None:
    """Print text as it is, unwrapped."""
    try:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    except OSError:
        console.on_broken_pipe()


def show(console: Console, table: Table) -> None:
    """Print a table."""
    try:
        console.print(table)
    except OSError:
        console.on_broken_pipe()


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """While inside, whatever anyone prints goes to standard error: Ray's own lines too, and those of processes started meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """While inside, rayplane's own warnings are shown, as on why it waits."""
    handler = _Warnings(console)
    logger = logging.getLogger("rayplane")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        say(self._console, record.getMessage())
