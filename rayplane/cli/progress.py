"""How a run looks while it goes: a bar on a terminal, a line every so many steps elsewhere.

step  20/300  loss 3.2143  12.3 k tokens/s  ETA 0:02:10
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rayplane.cli.screen import say
from rayplane.cli.words import count, duration, tell
from rayplane.control.event import Event
from rayplane.control.loop import Observer
from rayplane.control.state import State
from rayplane.spec.report import StepReport

LINES = 20
"""About so many lines a run."""
LINE_EVERY_S = 30.0
"""At the latest after so long, so that a log shows life."""
SMOOTHING = 0.1
"""Weight of the newest step in the shown pace."""


@contextmanager
def progress(console: Console, steps: int) -> Iterator[Observer]:
    """An observer that shows how far the run is."""
    if not console.is_terminal:
        yield Lines(console, steps)
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[pace]} tokens/s  ETA"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as bar:
        yield Bar(bar, steps)


class Pace:
    """Seconds per step, smoothed."""

    def __init__(self) -> None:
        self.step_s = 0.0

    def add(self, reports: Sequence[StepReport]) -> None:
        """One more step, as long as its slowest rank."""
        wall_s = max(r.wall_s for r in reports)
        self.step_s = self.step_s + SMOOTHING * (wall_s - self.step_s) if self.step_s else wall_s

    def tokens_per_s(self, tokens: int) -> str:
        """Of steps with so many tokens, in words."""
        return count(tokens / max(self.step_s, 1e-9))


class Bar:
    """A progress bar; events are printed above it."""

    def __init__(self, bar: Progress, steps: int):
        self._bar, self._pace = bar, Pace()
        self._task = bar.add_task("", total=steps, loss="-", pace="-")

    def on_event(self, state: State, event: Event) -> None:
        """Print what a user should know."""
        if text := tell(state, event):
            say(self._bar.console, text)
            self._bar.update(self._task, completed=state.progress.step)

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Move the bar."""
        self._pace.add(reports)
        first = reports[0]
        pace = self._pace.tokens_per_s(first.tokens)
        self._bar.update(self._task, completed=first.step, loss=f"{first.loss:.4f}", pace=pace)


class Lines:
    """A line every so many steps."""

    def __init__(self, console: Console, steps: int):
        self._console, self._steps, self._pace = console, steps, Pace()
        self._every = max(1, steps // LINES)
        self._shown_s = time.monotonic()

    def on_event(self, state: State, event: Event) -> None:
        """Print what a user should know."""
        if text := tell(state, event):
            say(self._console, text)

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Print a line when it is time."""
        self._pace.add(reports)
        first = reports[0]
        if first.step % self._every and first.step != self._steps and time.monotonic() - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = time.monotonic()
        eta = duration((self._steps - first.step) * self._pace.step_s)
        width = len(str(self._steps))
        pace = self._pace.tokens_per_s(first.tokens)
        say(self._console, f"step {first.step:{width}}/{self._steps}  loss {first.loss:.4f}  {pace} tokens/s  ETA {eta}")
