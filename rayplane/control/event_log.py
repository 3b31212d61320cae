"""`events.jsonl` as values: how a journal writes an event, and a log read back, run by run.

{"unix_s": 1764444444.1, "event": "Submitted", "checkpoint": …, "arrangement": {"id": 1, "layout": …, "slots": …}, "state": "placing",
 "run": {"version": 1, "limits": …}}                              the first line of a run says under which limits it is
{"unix_s": 1764444450.7, "event": "StepDone", "step": 7, "loss": 2.5, "state": "running"}
{"unix_s": 1764444451.2, "event": "Planned", "arrangement": {"id": 1}, "state": "placing"}      an arrangement is written out once a run

A run that was killed may have left its last line half written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from rayplane.control.event import Event
from rayplane.control.state import Arrangement
from rayplane.errors import RayplaneError
from rayplane.spec.job import LimitsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

VERSION = 1
_READERS: dict[str, TypeAdapter[Event]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Event)}


def opening(limits: LimitsSection) -> dict[str, Any]:
    """What the first line of a run says beside its event."""
    return {"version": VERSION, "limits": limits.model_dump(mode="json")}


class Shorthand:
    """Writes the events of one run: an arrangement in full where it comes up first, by its number from then on."""

    def __init__(self) -> None:
        self._numbers: dict[Arrangement, int] = {}

    def written(self, event: Any) -> dict[str, Any]:
        """An event's fields as JSON has them."""
        return {f.name: self._plain(getattr(event, f.name)) for f in fields(event)}

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Arrangement):
            return self._arrangement(value)
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value

    def _arrangement(self, value: Arrangement) -> dict[str, Any]:
        if known := self._numbers.get(value):
            return {"id": known}
        number = self._numbers[value] = len(self._numbers) + 1
        layout = {f.name: v for f in fields(Layout) if (v := getattr(value.layout, f.name)) != f.default}
        places = list(dict.fromkeys((slot.node, slot.island) for slot in value.placement.slots))
        at = {place: index for index, place in enumerate(places)}
        slots = [[s.replica, s.stage, s.part, s.ranks, at[s.node, s.island]] for s in value.placement.slots]
        return {"id": number, "layout": layout, "step_s": value.step_s, "places": places, "slots": slots}


@dataclass(frozen=True, slots=True)
class Line:
    """An event, when it came, and the name of the state that it led to."""

    number: int
    """Of the line in the file, from 1."""
    unix_s: float
    event: Event
    state: str


@dataclass(slots=True)
class Run:
    """What one controller wrote."""

    limits: LimitsSection
    lines: list[Line] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Lines that could not be read, and why; not a last one that is half written."""
    torn: bool = False
    """Whether its last line is half written."""


def read_log(path: Path) -> tuple[Run, ...]:
    """The runs of a log. RayplaneError where there is none that can be replayed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RayplaneError(f"{path} cannot be read: {error.strerror}; name an events.jsonl, or the folder of a job") from error
    chapters = list(_chapters(text.splitlines(keepends=True)))
    if not chapters:
        raise RayplaneError(f"{path} says nowhere under which limits a job trained: nothing of it can be replayed")
    return tuple(_run(path, *chapter) for chapter in chapters)


Raw = tuple[int, dict[str, Any] | None, bool]
"""Number of a line, what it holds, and whether it is whole."""


def _chapters(lines: list[str]) -> Iterator[tuple[dict[str, Any], list[Raw]]]:
    """(opening, lines) of each run; what stands before the first opening is of no run."""
    opening_of, found = None, list[Raw]()
    for number, text in enumerate(lines, 1):
        value = _object(text)
        if value is not None and isinstance(value.get("run"), dict):
            if opening_of is not None:
                yield opening_of, found
            opening_of, found = value["run"], []
        found.append((number, value, text.endswith("\n")))
    if opening_of is not None:
        yield opening_of, found


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _run(path: Path, opening_of: dict[str, Any], raw: list[Raw]) -> Run:
    number = raw[0][0]
    if opening_of.get("version") != VERSION:
        written, known = opening_of.get("version"), f"this rayplane reads version {VERSION}"
        raise RayplaneError(f"{path}:{number}: the log has version {written!r}, {known}; replay it with the one that wrote it")
    try:
        run = Run(LimitsSection.model_validate(opening_of.get("limits")))
    except ValidationError as error:
        raise RayplaneError(f"{path}:{number}: run.limits: {_first(error)}; replay it with the rayplane that wrote it") from error
    arrangements: dict[int, Arrangement] = {}
    for number, value, _ in raw:
        try:
            if value is None:
                raise ValueError("is no JSON object")
            run.lines.append(_line(number, value, arrangements))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            run.faults.append(f"line {number}: {_why(error)}")
    if raw[-1][1] is None:
        run.torn = True
        run.faults.pop()
    return run


def _line(number: int, value: dict[str, Any], arrangements: dict[int, Arrangement]) -> Line:
    if value["event"] not in _READERS:
        raise ValueError(f"event {value['event']!r} is not known")
    known = {k: v for k, v in value.items() if k not in ("unix_s", "event", "state", "run")}
    if "arrangement" in known:
        known["arrangement"] = _arrangement(known["arrangement"], arrangements)
    event = _READERS[value["event"]].validate_python(known)
    return Line(number, float(value["unix_s"]), event, str(value["state"]))


def _arrangement(value: dict[str, Any], arrangements: dict[int, Arrangement]) -> Arrangement:
    if "layout" in value:
        layout: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in value["layout"].items()}
        places = [(str(node), str(island)) for node, island in value["places"]]
        slots = (Slot(replica, stage, part, tuple(ranks), *places[at]) for replica, stage, part, ranks, at in value["slots"])
        arrangements[value["id"]] = Arrangement(Layout(**layout), Placement(tuple(slots)), value["step_s"])
    return arrangements[value["id"]]


def _why(error: Exception) -> str:
    match error:
        case ValidationError():
            return _first(error)
        case KeyError():
            return f"{error} is missing"
        case _:
            return str(error)


def _first(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return ": ".join([*map(str, fault["loc"]), fault["msg"]])
