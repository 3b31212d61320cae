"""A schedule is data: one tuple of Actions per rank of the pipe.

Builders list compute Actions; passes add communication, the gradient reduction and the optimizer step; `check` proves that the
result ends, cannot deadlock and runs every microbatch once. The runtime executes this list, the planner prices it, the trace draws it.

    one_f_one_b(num_stages=2, num_microbatches=3), compute only:
    0  F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    1  F1.0 B1.0 F1.1 B1.1 F1.2 B1.2

`F1.2` is the forward of model chunk 1 for microbatch 2. Letters: F forward, B backward, SF/RF send and post-receive of the forward's
activation (named by the chunk that produces, or consumes, it), SB/RB the same for its gradient, R reduction of a chunk's gradients
over dp, O optimizer step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rayplane.spec.layout import Layout


class Op(StrEnum):
    """What an Action does."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_F = "SF"
    RECV_F = "RF"
    SEND_B = "SB"
    RECV_B = "RB"
    REDUCE = "R"
    STEP = "O"


COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD})
_ACTION = re.compile(r"(SF|RF|SB|RB|F|B|R|O)(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a schedule. `R` and `O` concern no microbatch and print microbatch 0."""

    op: Op
    chunk: int
    microbatch: int = 0

    def __str__(self) -> str:
        return f"{self.op}{self.chunk}.{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """The Action that prints as `text`; ValueError for anything else."""
        match = _ACTION.fullmatch(text)
        if not match:
            raise ValueError(f"not an action: {text!r}")
        return cls(Op(match[1]), int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """One tuple of Actions per rank of the pipe, for chunks placed on stages round-robin."""

    name: str
    num_microbatches: int
    num_chunks: int
    ranks: tuple[tuple[Action, ...], ...]

    def stage_of(self, chunk: int) -> int:
        """The pipe rank that runs a chunk."""
        return chunk % len(self.ranks)

    def __str__(self) -> str:
        return "\n".join(f"{rank}  {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks))


class ScheduleError(Exception):
    """A schedule that would deadlock, skip work or do it twice."""


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., GPipe, section 2.3)."""
    ranks = tuple(
        tuple(
            [Action(Op.FORWARD, s, m) for m in range(num_microbatches)] + [Action(Op.BACKWARD, s, m) for m in range(num_microbatches)]
        )
        for s in range(num_stages)
    )
    return Schedule("gpipe", num_microbatches, num_stages, ranks)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Stage s holds at most `num_stages - s` activations (Narayanan et al., PipeDream-Flush, section 2.2)."""
    ranks = []
    for s in range(num_stages):
        warmup = min(num_stages - 1 - s, num_microbatches)
        actions = [Action(Op.FORWARD, s, m) for m in range(warmup)]
        for m in range(num_microbatches):
            if m + warmup < num_microbatches:
                actions.append(Action(Op.FORWARD, s, m + warmup))
            actions.append(Action(Op.BACKWARD, s, m))
        ranks.append(tuple(actions))
    return Schedule("1f1b", num_microbatches, num_stages, tuple(ranks))


def forward_only(num_stages: int, num_microbatches: int) -> Schedule:
    """No backward: evaluation, and prefill of independent batches."""
    ranks = tuple(tuple(Action(Op.FORWARD, s, m) for m in range(num_microbatches)) for s in range(num_stages))
    return Schedule("forward", num_microbatches, num_stages, ranks)


BUILDERS: Mapping[str, Callable[[int, int], Schedule]] = {"1f1b": one_f_one_b, "gpipe": gpipe}
"""Schedules by the name a job gives them. A new one is a function here: (num_stages, num_microbatches) -> Schedule."""


def build(layout: Layout, num_microbatches: int) -> Schedule:
    """The full, checked Action list that the runtime executes for one step."""
    schedule = BUILDERS[layout.schedule](layout.pp, num_microbatches)
    schedule = add_step(add_communication(schedule))
    check(schedule)
    return schedule


def build_forward(layout: Layout, num_microbatches: int) -> Schedule:
    """The checked Action list of a pass without backward."""
    schedule = add_communication(forward_only(layout.pp, num_microbatches))
    check(schedule, frozenset({Op.FORWARD}))
    return schedule


def add_communication(schedule: Schedule) -> Schedule:
    """Add a send after every compute Action whose result another stage needs, and post every receive one compute Action early.

    A receive Action only posts; the compute Action that consumes it waits. Posting early lets the transfer run behind compute.
    """
    ranks = []
    for rank, actions in enumerate(schedule.ranks):
        receives, sends = zip(*(_neighbours(schedule, rank, a) for a in actions), strict=True)
        out = list(receives[0])
        for i, action in enumerate(actions):
            out += [*(receives[i + 1] if i + 1 < len(actions) else ()), action, *sends[i]]
        ranks.append(tuple(out))
    return Schedule(schedule.name, schedule.num_microbatches, schedule.num_chunks, tuple(ranks))


def _neighbours(schedule: Schedule, rank: int, action: Action) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """(receive that feeds a compute Action, send of its result), each empty where the neighbour is on this rank or absent."""
    forward = action.op is Op.FORWARD
    before, after = (action.chunk - 1, action.chunk + 1) if forward else (action.chunk + 1, action.chunk - 1)

    def remote(chunk: int) -> bool:
        return 0 <= chunk < schedule.num_chunks and schedule.stage_of(chunk) != rank

    receive = Action(Op.RECV_F if forward else Op.RECV_B, action.chunk, action.microbatch)
    send = Action(Op.SEND_F if forward else Op.SEND_B, action.chunk, action.microbatch)
    return (receive,) if remote(before) else (), (send,) if remote(after) else ()


def add_step(schedule: Schedule) -> Schedule:
    """Add the gradient reduction of each chunk once its last backward is done and sent, and one optimizer step at the end."""
    ranks = []
    for rank, actions in enumerate(schedule.ranks):
        last = {a.chunk: i for i, a in enumerate(actions) if a.op in (Op.BACKWARD, Op.SEND_B)}
        out: list[Action] = []
        for i, action in enumerate(actions):
            out.append(action)
            if last.get(action.chunk) == i:
                out.append(Action(Op.REDUCE, action.chunk))
        ranks.append((*out, Action(Op.STEP, rank)))
    return Schedule(schedule.name, schedule.num_microbatches, schedule.num_chunks, tuple(ranks))


def check(schedule: Schedule, ops: frozenset[Op] = COMPUTE) -> None:
    """Raise ScheduleError unless the schedule ends, cannot deadlock, and does each piece of work exactly once and in place.

    Plays it with sends that never block and computes that wait for their input; also demands that each directed channel
    receives in the order it sends (NCCL matches by order, not by tag).
    """
    _check_complete(schedule, ops)
    _check_channels(schedule)
    done: set[Action] = set()
    posted: set[Action] = set()
    position = [0] * len(schedule.ranks)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while position[rank] < len(actions) and _ready(schedule, rank, actions[position[rank]], done, posted):
                action = actions[position[rank]]
                (posted if action.op in (Op.RECV_F, Op.RECV_B) else done).add(action)
                position[rank] += 1
                moved = True
    stuck = [f"rank {r} at {a[p]}" for r, (a, p) in enumerate(zip(schedule.ranks, position, strict=True)) if p < len(a)]
    if stuck:
        raise ScheduleError(f"{schedule.name}: deadlock, {', '.join(stuck)}")


def _check_complete(schedule: Schedule, ops: frozenset[Op]) -> None:
    want = {Action(op, c, m) for op in ops for c in range(schedule.num_chunks) for m in range(schedule.num_microbatches)}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action in seen:
                raise ScheduleError(f"{schedule.name}: {action} runs twice")
            seen.add(action)
            if schedule.stage_of(action.chunk) != rank:
                raise ScheduleError(f"{schedule.name}: {action} is on rank {rank}, its chunk is not")
    if missing := want - seen:
        raise ScheduleError(f"{schedule.name}: never runs {', '.join(sorted(map(str, missing))[:5])}")


def _check_channels(schedule: Schedule) -> None:
    for send, receive, shift in ((Op.SEND_F, Op.RECV_F, 1), (Op.SEND_B, Op.RECV_B, -1)):
        sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        received: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for rank, actions in enumerate(schedule.ranks):
            for a in actions:
                if a.op is send:
                    sent.setdefault((rank, schedule.stage_of(a.chunk + shift)), []).append((a.chunk + shift, a.microbatch))
                elif a.op is receive:
                    received.setdefault((schedule.stage_of(a.chunk - shift), rank), []).append((a.chunk, a.microbatch))
        if sent != received:
            raise ScheduleError(f"{schedule.name}: {send} and {receive} do not match in number or order")


def _ready(schedule: Schedule, rank: int, action: Action, done: set[Action], posted: set[Action]) -> bool:
    """Whether a rank can complete its next Action, given what all ranks have done."""
    chunk, m = action.chunk, action.microbatch
    if action.op is Op.FORWARD:
        return chunk == 0 or _arrived(schedule, rank, Action(Op.FORWARD, chunk - 1, m), Action(Op.RECV_F, chunk, m), done, posted)
    if action.op is Op.BACKWARD:
        if Action(Op.FORWARD, chunk, m) not in done:
            return False
        last = chunk == schedule.num_chunks - 1
        return last or _arrived(schedule, rank, Action(Op.BACKWARD, chunk + 1, m), Action(Op.RECV_B, chunk, m), done, posted)
    if action.op in (Op.SEND_F, Op.SEND_B):
        return Action(Op.FORWARD if action.op is Op.SEND_F else Op.BACKWARD, chunk, m) in done
    if action.op is Op.REDUCE:
        return all(Action(Op.BACKWARD, chunk, i) in done for i in range(schedule.num_microbatches))
    if action.op is Op.STEP:
        return all(Action(Op.REDUCE, c) in done for c in range(schedule.num_chunks) if schedule.stage_of(c) == rank)
    return True


def _arrived(schedule: Schedule, rank: int, source: Action, receive: Action, done: set[Action], posted: set[Action]) -> bool:
    """Whether the result of `source` is here: computed on this rank, or sent to it and the receive posted."""
    if schedule.stage_of(source.chunk) == rank:
        return source in done
    send = Action(Op.SEND_F if source.op is Op.FORWARD else Op.SEND_B, source.chunk, source.microbatch)
    return send in done and receive in posted
