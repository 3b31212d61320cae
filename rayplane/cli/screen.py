"""Where commands print for people: plain text, as wide as it gets when nobody sees it on a terminal."""

from __future__ import annotations

from rich.console import Console

WIDE = 200
"""Columns of a table that goes to a file or a pipe, where nothing should be cut."""


def screen(stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = WIDE
    return console


def say(console: Console, text: str) -> None:
    """Print text as it is, unwrapped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
