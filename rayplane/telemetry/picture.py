"""Actions over time as text: a row per stage, to scale, each Action from its first column to its last.

    0  F0-F1-F2-.........B0----B1----B2----         F1-   forward of microbatch 1, for as long as it takes
    1  ...F0-F1-F2-B0----B1----B2----......         ...   nothing to do

(gpipe, two stages, three microbatches.) A stage's second chunk goes on with `=`, its third with `~`. What takes less than half a
column is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from rayplane.spec.schedule import COMPUTE, Action, Op, Span

SHOWN = COMPUTE | {Op.REDUCE, Op.STEP}
IDLE, GOES_ON = ".", "-=~+*#"
MOST = 0.8
"""A name is short enough when it has room in so many of the compute Actions."""
Rows = Mapping[str, Sequence[Span]]
"""What stands before a row, and the row's Actions in time."""
Run = tuple[Action | None, int]
"""An Action, or none, and for how many columns."""


def scale(rows: Rows, width: int) -> float:
    """Columns a second at which all rows fit; whole columns for each where all compute Actions are multiples of the shortest."""
    shown = [s for row in rows.values() for s in row if s.action.op in SHOWN]
    lengths_s = [s.end_s - s.start_s for s in shown if s.action.op in COMPUTE and s.end_s > s.start_s]
    most, shortest_s = width / max(s.end_s for s in shown), min(lengths_s)
    regular = all(abs(length_s / shortest_s - round(length_s / shortest_s)) < 1e-6 for length_s in lengths_s)
    return int(most * shortest_s) / shortest_s if regular and most * shortest_s >= 1 else most


def picture(rows: Rows, columns_per_s: float) -> list[str]:
    """The rows as lines, with the longest names that have room."""
    runs = {name: [(action, len(list(same))) for action, same in groupby(_cells(row, columns_per_s))] for name, row in rows.items()}
    chunks = {name: sorted({span.action.chunk for span in row if span.action.op in COMPUTE}) for name, row in rows.items()}
    name_of = _naming([run for row in runs.values() for run in row], alone=all(len(of) == 1 for of in chunks.values()))
    before = max(map(len, rows))
    return [f"{name:>{before}}  {''.join(_text(run, chunks[name], name_of) for run in row)}" for name, row in runs.items()]


def _cells(row: Sequence[Span], columns_per_s: float) -> list[Action | None]:
    """What is done in each column."""
    out: list[Action | None] = []
    for span in row:
        if span.action.op in SHOWN:
            first, last = (round(at_s * columns_per_s) for at_s in (span.start_s, span.end_s))
            out += [None] * (first - len(out))
            out += [span.action] * (last - len(out))
    return out


def _naming(runs: Sequence[Run], alone: bool) -> Callable[[Action], str]:
    """How Actions are called: chunk and microbatch, the microbatch only, or the operation. `alone`: no stage has two chunks."""
    compute = [(action, length) for action, length in runs if action and action.op in COMPUTE]
    for name, mark in ((str, 0), (_short, 0 if alone else 1)):
        if sum(len(name(action)) + mark <= length for action, length in compute) >= MOST * len(compute):
            return name
    return lambda action: str(action.op)


def _short(action: Action) -> str:
    return f"{action.op}{action.microbatch}"


def _text(run: Run, chunks: Sequence[int], name_of: Callable[[Action], str]) -> str:
    action, length = run
    if action is None:
        return IDLE * length
    if action.op not in COMPUTE:
        return str(action.op).ljust(length, GOES_ON[0])
    name, goes_on = name_of(action), GOES_ON[chunks.index(action.chunk) % len(GOES_ON)]
    return (name if len(name) <= length else str(action.op)).ljust(length, goes_on)
