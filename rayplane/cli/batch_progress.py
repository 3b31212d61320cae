"""How a batch looks while it goes, and what is said at its end.

312/1000  1 refused  1.2 k tokens/s  0:02:10 left
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rayplane.api.batch.answers import Answers
from rayplane.api.batch.lines import Ask
from rayplane.api.batch.tally import Tally
from rayplane.api.batch.verdict import Write
from rayplane.cli.screen import say
from rayplane.cli.words import count, duration

LINES = 20
"""About so many lines a run."""
LINE_EVERY_S = 30.0
"""At the latest after so long while answers come."""


class Recorder:
    """Writes what comes, counts it, and says what a user should know."""

    def __init__(self, answers: Answers, tally: Tally, console: Console):
        self._answers, self._tally, self._console = answers, tally, console

    def answered(self, ask: Ask, answer: Write) -> None:
        """It counts once it is written."""
        self._answers.add(ask, answer.status, answer.body, answer.request_id)
        self._tally.add(answer)
        self._show()

    def given_up(self, ask: Ask, reason: str) -> None:
        """It stays without an answer."""
        self._tally.given_up += 1
        say(self._console, f"line {ask.line} ({ask.custom_id:.80}) is given up for now: {reason}")

    def leaving(self, num_out: int, by_s: float) -> None:
        """Say so."""
        running = f"{num_out} request{'' if num_out == 1 else 's'} that run{'s' if num_out == 1 else ''}"
        say(self._console, f"stopping: {running} may end within {by_s:g} s (once more to stop at once)" if by_s else "stopping at once")

    def _show(self) -> None:
        """Show how far it is."""


class Lines(Recorder):
    """A line every so many answers."""

    def __init__(self, answers: Answers, tally: Tally, console: Console):
        super().__init__(answers, tally, console)
        self._every, self._shown_s = max(1, tally.census.requests // LINES), time.monotonic()

    def _show(self) -> None:
        if self._tally.settled % self._every and self._tally.left and time.monotonic() - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = time.monotonic()
        say(self._console, in_words(self._tally))


class Bar(Recorder):
    """A bar."""

    def __init__(self, answers: Answers, tally: Tally, bar: Progress):
        super().__init__(answers, tally, bar.console)
        self._bar = bar
        self._task = bar.add_task(in_words(tally), total=tally.census.requests, completed=tally.settled)

    def _show(self) -> None:
        self._bar.update(self._task, completed=self._tally.settled, description=in_words(self._tally))


@contextmanager
def recorder(answers: Answers, tally: Tally, console: Console) -> Iterator[Recorder]:
    """Shows how far the batch is: a bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Lines(answers, tally, console)
        return
    with Progress(BarColumn(), TextColumn("{task.description}"), console=console) as bar:
        yield Bar(answers, tally, bar)


def in_words(tally: Tally) -> str:
    """How far it is, in a line."""
    width = len(str(tally.census.requests))
    parts = [f"{tally.settled:{width}}/{tally.census.requests}"]
    if tally.failed:
        parts.append(f"{tally.failed} refused")
    parts.append(f"{count(tally.recent()[1])} tokens/s")
    if (left_s := tally.remaining_s()) is not None:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def final_object(tally: Tally, state: str, message: str) -> dict[str, Any]:
    """What `rayplane batch --json` ends with."""
    return {
        "state": state,
        "requests": tally.census.requests,
        "done": tally.done,
        "failed": tally.failed + tally.given_up,
        "skipped": tally.census.skipped,
        "prompt_tokens": tally.prompt_tokens,
        "output_tokens": tally.output_tokens,
        "wall_s": round(tally.wall_s, 2),
        "output_tokens_s": round(tally.output_tokens_s, 1),
        "message": message,
    }


def show_end(console: Console, tally: Tally, out: Path) -> None:
    """The summary for people."""
    census, before = tally.census, tally.census.failed_before
    lines = {"answered": f"{tally.done} of {census.requests}, in {out}"}
    if tally.failed:
        lines["refused"] = f"{tally.failed}, with the reason in the answer's place"
    if census.skipped:
        lines["skipped"] = f"{census.skipped} that had their answers{f', {before} of them refused' if before else ''}"
    if tally.given_up:
        lines["given up"] = f"{tally.given_up}, not written; the same command asks them again"
    if tally.written:
        tokens, rate = count(tally.output_tokens), count(tally.output_tokens_s)
        lines["throughput"] = f"{tokens} tokens in {duration(tally.wall_s)}, {rate} tokens/s"
    for name, text in lines.items():
        say(console, f"{name:14} {text}")
