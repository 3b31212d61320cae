"""`rayplane replay`: the event log of a job that trains, played through the machine again.

run 1, began 2026-11-29 20:23:52
 line  time    event                                     state    step  attempt  effects
    1  0.00 s  Submitted                                 placing     0        1  Start
    2  4.10 s  Placed                                    starting    0        1
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayplane.cli.screen import say, screen, show
from rayplane.cli.words import as_json
from rayplane.control.event import (
    BetterPlan,
    Event,
    GangDone,
    KillDone,
    NothingFits,
    PlaceFailed,
    Planned,
    RankExited,
    RankFailed,
    RankLost,
    RankSlow,
    Saved,
    Started,
    StepDone,
    Submitted,
    TimedOut,
)
from rayplane.control.event_log import Run, read_log
from rayplane.control.failure import explain, failure_of
from rayplane.control.replay import Turn, replayed
from rayplane.control.state import Failed, Finished
from rayplane.control.status import EVENTS_FILE, state_name
from rayplane.errors import RayplaneError


def replay(
    log: Annotated[Path, typer.Argument(help="An events.jsonl, or the folder of a job that trains.")],
    run: Annotated[int | None, typer.Option("--run", min=1, help="Only this run of the job, counted from 1; by default all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list, an object per run, with every event.")] = False,
) -> None:
    """Play the event log of a training job through its state machine, and say where the two differ (exit code 1)."""
    found = list(enumerate(read_log(log / EVENTS_FILE if log.is_dir() else log), 1))
    if run and run > len(found):
        raise RayplaneError(f"{log} holds {len(found)} runs; --run {run} is none of them")
    played = [(number, of, replayed(of)) for number, of in found if run in (None, number)]
    if json:
        typer.echo(as_json([_object(*one) for one in played]))
    else:
        console = screen()
        for one in played:
            _show(console, *one)
    if any(of.faults or any(turn.differs for turn in turns) for _, of, turns in played):
        raise typer.Exit(1)


def _object(number: int, run: Run, turns: Sequence[Turn]) -> dict[str, Any]:
    return {
        "run": number,
        "limits": run.limits.model_dump(mode="json"),
        "ended": _ended(turns),
        "torn": run.torn,
        "faults": run.faults,
        "differences": sum(turn.differs for turn in turns),
        "events": [_turn_object(turn) for turn in turns],
    }


def _turn_object(turn: Turn) -> dict[str, Any]:
    line, progress = turn.line, turn.state.progress
    return {
        "line": line.number,
        "unix_s": line.unix_s,
        "event": type(line.event).__name__,
        "said": _said(line.event),
        "state": state_name(turn.state),
        "log": line.state,
        "step": progress.step,
        "attempt": progress.attempt,
        "checkpoint": progress.checkpoint.path,
        "layout": str(progress.arrangement.layout),
        "restarts": asdict(progress.spent),
        "effects": [type(effect).__name__ for effect in turn.effects],
        "differs": turn.differs,
    }


def _ended(turns: Sequence[Turn]) -> bool:
    return bool(turns) and isinstance(turns[-1].state, Finished | Failed)


def _show(console: Console, number: int, run: Run, turns: Sequence[Turn]) -> None:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(turns[0].line.unix_s)) if turns else "never"
    say(console, f"run {number}, began {began}")
    table = Table("line", "time", "event", "state", "step", "attempt", "effects", box=None)
    for column in (0, 1, 4, 5):
        table.columns[column].justify = "right"
    for first, last in _gathered(turns):
        table.add_row(*_row(first, last, turns[0].line.unix_s))
    show(console, table)
    for fault in run.faults:
        say(console, f"  {fault}: left out")
    if run.torn:
        say(console, "  its last line is half written: the controller, or its machine, died at it")
    if not _ended(turns):
        say(console, "  the log ends before the job does")
    differences = sum(turn.differs for turn in turns)
    verdict = f"differ at {differences} of {len(turns)} events" if differences else "agree"
    say(console, f"  the log and the machine {verdict}")


def _row(first: Turn, last: Turn, began_s: float) -> tuple[str, ...]:
    line, progress = last.line, last.state.progress
    name, said = type(line.event).__name__, _said(line.event)
    steps = f"{name} {_step(first)}-{_step(last)}" if first is not last else f"{name} {said}".strip()
    state = state_name(last.state)
    named = f"{state}, not {line.state} as in the log" if last.differs else state
    effects = " ".join(type(effect).__name__ for effect in last.effects)
    return str(line.number), f"{line.unix_s - began_s:.2f} s", steps, named, str(progress.step), str(progress.attempt), effects


def _gathered(turns: Sequence[Turn]) -> Iterator[tuple[Turn, Turn]]:
    """(first, last) of each row: steps that follow one another, and differ in nothing, have one."""
    start = 0
    for index, turn in enumerate(turns):
        after = turns[index + 1] if index + 1 < len(turns) else None
        if after is None or not (_quiet(turn) and _quiet(after) and turn.line.state == after.line.state):
            yield turns[start], turn
            start = index + 1


def _quiet(turn: Turn) -> bool:
    return isinstance(turn.line.event, StepDone) and not turn.effects and not turn.differs


def _step(turn: Turn) -> int:
    return turn.state.progress.step


def _said(event: Event) -> str:
    """What an event says beside its name."""
    match event:
        case Submitted(checkpoint, arrangement):
            return f"{arrangement.layout} from step {checkpoint.step}"
        case BetterPlan(arrangement, reason):
            return f"{arrangement.layout}: {reason}"
        case Planned(arrangement):
            return str(arrangement.layout)
        case Started(step) | StepDone(step) | GangDone(step):
            return str(step)
        case Saved(checkpoint) | KillDone(checkpoint):
            return f"step {checkpoint.step}"
        case RankFailed() | RankExited() | RankLost() | TimedOut():
            return explain([failure_of(event)])
        case PlaceFailed(message) | NothingFits(message):
            return message
        case RankSlow(rank, factor):
            return f"rank {rank}, {factor:.1f} times"
        case _:
            return ""
