"""Traces in a job's folder: what each rank did in the steps that were recorded, on one common time.

    runs/quickstart/trace/step-00000010/rank-00003.json      a RankTrace; written aside, renamed

Ranks of one host share its clock. Hosts are set by the barrier at which a trace begins: the first rank of each host to leave it left at
second 0. So times of one host are right to microseconds among themselves, those of two hosts to the time in which a barrier lets
go of its ranks (`accuracy_s`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rayplane.errors import RayplaneError
from rayplane.spec.report import COMPUTE_PHASES, RankTrace, Stretch
from rayplane.spec.schedule import COMPUTE, Action, Span

TRACE_FOLDER = "trace"
Step = list[RankTrace]
"""One step of all ranks, by rank."""
_FORM = TypeAdapter(RankTrace)


def write(directory: Path, trace: RankTrace) -> None:
    """Keep a trace in a job's folder; OSError where that cannot be."""
    path = directory / TRACE_FOLDER / f"step-{trace.step:08d}" / f"rank-{trace.rank:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(_FORM.dump_json(trace))
    aside.replace(path)


def read(directory: Path) -> tuple[list[Step], list[str]]:
    """What a job has recorded under the layout of its newest step, oldest step first; and what is left out, in words.

    RayplaneError where a file is damaged.
    """
    whole, notes = list[Step](), list[str]()
    for folder in sorted((directory / TRACE_FOLDER).glob("step-*")):
        traces = [_read(path) for path in sorted(folder.glob("rank-*.json"))]
        # A restart under another layout may have left files of more ranks.
        step = [t for t in traces if t.layout == traces[0].layout]
        missing = sorted(set(range(traces[0].layout.size)) - {t.rank for t in step}) if traces else [0]
        if missing:
            notes.append(f"{folder} is left out: nothing was recorded by rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
        else:
            whole.append(_on_one_time(step))
    return [step for step in whole if step[0].layout == whole[-1][0].layout], notes


def accuracy_s(step: Step) -> float:
    """To what times of two hosts are right: how far apart, at most, ranks of one host left the barrier. 0 where there is one host."""
    left_s: dict[str, list[float]] = {}
    for trace in step:
        left_s.setdefault(trace.host, []).append(trace.start_unix_s)
    return max(max(times_s) - min(times_s) for times_s in left_s.values()) if len(left_s) > 1 else 0.0


def spans(trace: RankTrace) -> tuple[Span, ...]:
    """The Actions of a trace. A compute Action begins when its input is there: waiting for that is not part of it."""
    out = []
    for action, of in groupby(trace.stretches, key=lambda s: s.action):
        if action:
            out.append(_span(Action.parse(action), tuple(of)))
    return tuple(out)


def _span(action: Action, of: Sequence[Stretch]) -> Span:
    busy = [s for s in of if s.phase in COMPUTE_PHASES] if action.op in COMPUTE else []
    busy = busy or list(of)
    return Span(action, busy[0].start_s, busy[-1].end_s)


def _read(path: Path) -> RankTrace:
    try:
        return _FORM.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.errors(include_url=False)[0]["msg"]
        raise RayplaneError(f"{path} is not a rank's trace ({reason}); remove its folder") from error


def _on_one_time(step: Step) -> Step:
    first_s = {host: min(t.start_unix_s for t in step if t.host == host) for host in {t.host for t in step}}
    return [_moved(t, t.start_unix_s - first_s[t.host]) for t in step]


def _moved(trace: RankTrace, by_s: float) -> RankTrace:
    return replace(trace, stretches=tuple(Stretch(s.phase, s.action, s.start_s + by_s, s.end_s + by_s) for s in trace.stretches))
