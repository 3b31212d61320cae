"""Actions over time as a file for Perfetto (ui.perfetto.dev) or chrome://tracing, in Chrome's trace event format.

process   planned or measured, replica and stage         slice   an Action; in and between them waits and collectives
thread    rank                                           arrow   from a send to where its message is used
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayplane.spec.report import COMM_PHASES, Stretch
from rayplane.spec.schedule import COMPUTE, Op, Span

Event = dict[str, Any]
PHASES_SHOWN = COMM_PHASES | {"recv_wait", "data", "optimizer"}
"""Forward and backward are in the Actions already."""
FEEDS = COMPUTE - {Op.WEIGHT_GRAD}
"""Actions whose result another stage may need."""
US_PER_S = 1e6
INSIDE_S = 1e-7
"""An arrow belongs to the slice it begins in, so it begins a little before that ends."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank of a step. Lanes of one `chain` send each other activations."""

    chain: tuple[object, ...]
    process: str
    thread: str
    spans: tuple[Span, ...]
    stretches: tuple[Stretch, ...] = ()
    offset_s: float = 0.0
    """Where second 0 of its step lies."""


def chrome(lanes: Sequence[Lane]) -> dict[str, Any]:
    """The content of the file."""
    return {"traceEvents": list(_events(lanes)), "displayTimeUnit": "ms"}


def _events(lanes: Sequence[Lane]) -> Iterator[Event]:
    pids: dict[str, int] = {}
    tids: dict[tuple[str, str], int] = {}
    for lane in lanes:
        pid = pids.setdefault(lane.process, len(pids) + 1)
        tids.setdefault((lane.process, lane.thread), len(tids) + 1)
    for process, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for (process, thread), tid in tids.items():
        yield {"ph": "M", "name": "thread_name", "pid": pids[process], "tid": tid, "args": {"name": thread}}
    where = {(lane.process, lane.thread): {"pid": pids[lane.process], "tid": tids[lane.process, lane.thread]} for lane in lanes}
    for lane in lanes:
        for event in _slices(lane):
            yield {**event, **where[lane.process, lane.thread]}
    yield from _arrows(lanes, where)


def _slices(lane: Lane) -> Iterator[Event]:
    for span in lane.spans:
        if span.end_s > span.start_s:
            known = {"chunk": span.action.chunk, "microbatch": span.action.microbatch}
            kind = "compute" if span.action.op in COMPUTE else "step"
            yield _slice(lane, str(span.action), kind, span.start_s, span.end_s) | {"args": known}
    for s in lane.stretches:
        if s.phase in PHASES_SHOWN:
            yield _slice(lane, s.phase, "phase", s.start_s, s.end_s)


def _slice(lane: Lane, name: str, kind: str, start_s: float, end_s: float) -> Event:
    return {"ph": "X", "name": name, "cat": kind, "ts": (start_s + lane.offset_s) * US_PER_S, "dur": (end_s - start_s) * US_PER_S}


def _arrows(lanes: Sequence[Lane], where: Mapping[tuple[str, str], Event]) -> Iterator[Event]:
    """From each compute Action whose result is sent to the one that uses it."""
    made = {
        (lane.chain, span.action.op is Op.FORWARD, span.action.chunk, span.action.microbatch): (lane, span)
        for lane in lanes
        for span in lane.spans
        if span.action.op in FEEDS
    }
    for number, ((chain, forward, chunk, microbatch), (lane, span)) in enumerate(made.items()):
        sender, sent = made.get((chain, forward, chunk - 1 if forward else chunk + 1, microbatch), (lane, span))
        if sender is lane:
            continue
        name = f"{Op.SEND_F if forward else Op.SEND_B}{sent.action.chunk}.{microbatch}"
        event = {"cat": "message", "name": name, "id": number}
        leaves_s, used_s = sent.end_s - INSIDE_S + sender.offset_s, span.start_s + lane.offset_s
        yield {"ph": "s", "ts": leaves_s * US_PER_S, **event, **where[sender.process, sender.thread]}
        yield {"ph": "f", "bp": "e", "ts": used_s * US_PER_S, **event, **where[lane.process, lane.thread]}
