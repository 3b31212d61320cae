"""A timeline on the screen: a row per stage, its Actions in their colours.

F forward blue   B backward green   I cyan, W yellow: its halves   R reduction, O step magenta
"""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text

from rayplane.cli.screen import say
from rayplane.plan.step.timeline import Timeline
from rayplane.telemetry.picture import GOES_ON, Rows, picture

STYLES = {"F": "blue", "B": "green", "I": "cyan", "W": "yellow", "R": "magenta", "O": "magenta"}


def rows_of(timeline: Timeline) -> Rows:
    """By the number of the stage."""
    return {str(stage): row for stage, row in enumerate(timeline.ranks)}


def draw(console: Console, rows: Rows, columns_per_s: float) -> None:
    """Print rows to scale."""
    for line in picture(rows, columns_per_s):
        text = Text(line)
        for op, style in STYLES.items():
            text.highlight_regex(rf"{op}\d*(\.\d+)?[{re.escape(GOES_ON)}]*", style)
        say(console, text)
