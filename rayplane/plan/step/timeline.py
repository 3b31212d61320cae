"""Plays a schedule in simulated time: the very Action lists that the runtime executes, with a price for each Action.

0  F0 F1 .. B0 .. B1 R O        a rank does one Action after another; a compute Action waits for its input
1  .. F0 B0 F1 B1 .. R O        a transfer runs beside compute, once it is sent and its receive is posted
                                the optimizer step waits for all ranks, since clipping needs the global norm
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rayplane.spec.schedule import COMPUTE, Action, Op, Schedule, ScheduleError, Span

Cost = Callable[[Action], float]
"""Seconds of an Action: a compute, reduction or step as it lasts; a send as the time until its message arrives; a receive is free."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of every rank, in order."""

    ranks: tuple[tuple[Span, ...], ...]

    @property
    def end_s(self) -> float:
        """When the last Action ends."""
        return max(spans[-1].end_s for spans in self.ranks)

    @property
    def compute_end_s(self) -> tuple[float, ...]:
        """When each rank's last forward or backward ends."""
        return tuple(max((s.end_s for s in spans if s.action.op in COMPUTE), default=0.0) for spans in self.ranks)

    @property
    def bubble(self) -> float:
        """Idle share of the pipe, from the start to the last backward of any rank."""
        busy = sum(s.end_s - s.start_s for spans in self.ranks for s in spans if s.action.op in COMPUTE)
        pipe_s = max(self.compute_end_s)
        return 1.0 - busy / (len(self.ranks) * pipe_s) if pipe_s else 0.0


@dataclass(slots=True)
class _Play:
    """The state of the simulation; a message is named by the receive that awaits it."""

    schedule: Schedule
    cost: Cost
    clock: list[float]
    position: list[int]
    spans: list[list[Span]]
    posted: dict[Action, float] = field(default_factory=dict)
    sent: dict[Action, tuple[float, float]] = field(default_factory=dict)
    waiting: dict[Action, int] = field(default_factory=dict)


def play(schedule: Schedule, cost: Cost) -> Timeline:
    """Simulate one step, in time linear in the number of Actions. Raises ScheduleError when the schedule deadlocks."""
    num_ranks = len(schedule.ranks)
    state = _Play(schedule, cost, [0.0] * num_ranks, [0] * num_ranks, [[] for _ in range(num_ranks)])
    ready = deque(range(num_ranks))
    while ready:
        ready.extend(_advance(state, ready.popleft()))
    if state.waiting:
        stuck = ", ".join(f"rank {rank} waits for {message}" for message, rank in state.waiting.items())
        raise ScheduleError(f"{schedule.name}: deadlock, {stuck}")
    _step(state)
    return Timeline(tuple(map(tuple, state.spans)))


def _advance(state: _Play, rank: int) -> list[int]:
    """Run a rank until it must wait or comes to its optimizer step; returns the ranks that its sends wake."""
    actions = state.schedule.ranks[rank]
    woken: list[int] = []
    while state.position[rank] < len(actions) and actions[state.position[rank]].op is not Op.STEP:
        action = actions[state.position[rank]]
        start = now = state.clock[rank]
        if action.op in COMPUTE:
            if (message := _input(state.schedule, rank, action)) is not None:
                if message not in state.sent:
                    state.waiting[message] = rank
                    return woken
                sent_s, transfer_s = state.sent[message]
                start = max(now, max(sent_s, state.posted[message]) + transfer_s)
            state.clock[rank] = start + state.cost(action)
        elif action.op in (Op.SEND_F, Op.SEND_B):
            message = _message(action)
            state.sent[message] = (now, state.cost(action))
            if (waiter := state.waiting.pop(message, None)) is not None:
                woken.append(waiter)
        elif action.op in (Op.RECV_F, Op.RECV_B):
            state.posted[action] = now
        else:
            state.clock[rank] = now + state.cost(action)
        state.spans[rank].append(Span(action, start, state.clock[rank]))
        state.position[rank] += 1
    return woken


def _step(state: _Play) -> None:
    start = max(state.clock)
    for rank, actions in enumerate(state.schedule.ranks):
        now = start
        for action in actions[state.position[rank] :]:
            state.spans[rank].append(Span(action, now, now + state.cost(action)))
            now += state.cost(action)


def _input(schedule: Schedule, rank: int, action: Action) -> Action | None:
    """The receive that a compute Action waits for; None when its input is made on this rank."""
    if action.op is Op.WEIGHT_GRAD:
        return None
    forward = action.op is Op.FORWARD
    source = action.chunk - 1 if forward else action.chunk + 1
    if not 0 <= source < schedule.num_chunks or schedule.stage_of(source) == rank:
        return None
    return Action(Op.RECV_F if forward else Op.RECV_B, action.chunk, action.microbatch)


def _message(send: Action) -> Action:
    if send.op is Op.SEND_F:
        return Action(Op.RECV_F, send.chunk + 1, send.microbatch)
    return Action(Op.RECV_B, send.chunk - 1, send.microbatch)
