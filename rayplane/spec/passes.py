"""From compute Actions to the full list of a step: passes that add what has to be around them, and the proof that it runs.

builders ─▶ add_communication ─▶ add_step ─▶ check ─▶ runtime, planner, trace
"""

from __future__ import annotations

from rayplane.spec.builders import BUILDERS, forward_only
from rayplane.spec.layout import Layout
from rayplane.spec.schedule import GIVES_WEIGHT_GRAD, Action, Op, Schedule, ScheduleError


def build(layout: Layout, num_microbatches: int) -> Schedule:
    """The full, checked Action list that the runtime executes for one step."""
    schedule = BUILDERS[layout.schedule](layout.pp, num_microbatches, layout.vpp)
    schedule = add_step(add_communication(schedule))
    check(schedule)
    return schedule


def build_forward(layout: Layout, num_microbatches: int) -> Schedule:
    """The checked Action list of a pass without backward."""
    schedule = add_communication(forward_only(layout.pp, num_microbatches, layout.vpp, layout.schedule))
    check(schedule, backward=False)
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
    if action.op is Op.WEIGHT_GRAD:
        return (), ()
    before, after = (action.chunk - 1, action.chunk + 1) if forward else (action.chunk + 1, action.chunk - 1)

    def remote(chunk: int) -> bool:
        return 0 <= chunk < schedule.num_chunks and schedule.stage_of(chunk) != rank

    receive = Action(Op.RECV_F if forward else Op.RECV_B, action.chunk, action.microbatch)
    send = Action(Op.SEND_F if forward else Op.SEND_B, action.chunk, action.microbatch)
    return (receive,) if remote(before) else (), (send,) if remote(after) else ()


def add_step(schedule: Schedule) -> Schedule:
    """Add, once all is computed and sent, the wait for each chunk's reduced gradients, and one optimizer step.

    The reductions themselves begin as gradients come in; waiting for one in the middle of the pipe would hold up other chunks.
    """
    ranks = []
    for rank, actions in enumerate(schedule.ranks):
        last = {a.chunk: i for i, a in enumerate(actions) if a.op in GIVES_WEIGHT_GRAD}
        reductions = [Action(Op.REDUCE, chunk) for chunk in sorted(last, key=lambda c: last[c])]
        ranks.append((*actions, *reductions, Action(Op.STEP, rank)))
    return Schedule(schedule.name, schedule.num_microbatches, schedule.num_chunks, tuple(ranks))


def check(schedule: Schedule, backward: bool = True) -> None:
    """Raise ScheduleError unless the schedule ends, cannot deadlock, and does each piece of work exactly once and in place.

    Plays it with sends that never block and computes that wait for their input; also demands that each directed channel
    receives in the order it sends (NCCL matches by order, not by tag). Without `backward` only forwards are wanted.
    """
    _check_complete(schedule, (Op.FORWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD) if backward else (Op.FORWARD,))
    _check_channels(schedule)
    done: set[Action] = set()
    position = [0] * len(schedule.ranks)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while position[rank] < len(actions) and all(n in done for n in _needs(schedule, rank, actions[position[rank]])):
                done.update(_halves(actions[position[rank]]))
                position[rank] += 1
                moved = True
    stuck = [f"rank {r} at {a[p]}" for r, (a, p) in enumerate(zip(schedule.ranks, position, strict=True)) if p < len(a)]
    if stuck:
        raise ScheduleError(f"{schedule.name}: deadlock, {', '.join(stuck)}")


def _halves(action: Action) -> tuple[Action, ...]:
    """A whole backward counts as both of its halves."""
    if action.op is not Op.BACKWARD:
        return (action,)
    return Action(Op.INPUT_GRAD, action.chunk, action.microbatch), Action(Op.WEIGHT_GRAD, action.chunk, action.microbatch)


def _check_complete(schedule: Schedule, ops: tuple[Op, ...]) -> None:
    want = {Action(op, c, m) for op in ops for c in range(schedule.num_chunks) for m in range(schedule.num_microbatches)}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            halves = _halves(action)
            if seen.intersection(halves):
                raise ScheduleError(f"{schedule.name}: {action} runs twice")
            seen.update(halves)
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


def _needs(schedule: Schedule, rank: int, action: Action) -> list[Action]:
    """What must have been done, on any rank, before a rank can complete an Action."""
    chunk, m = action.chunk, action.microbatch
    match action.op:
        case Op.FORWARD:
            return _arrival(schedule, rank, Op.FORWARD, chunk, chunk - 1, m)
        case Op.BACKWARD | Op.INPUT_GRAD:
            return [Action(Op.FORWARD, chunk, m), *_arrival(schedule, rank, Op.INPUT_GRAD, chunk, chunk + 1, m)]
        case Op.WEIGHT_GRAD | Op.SEND_B:
            return [Action(Op.INPUT_GRAD, chunk, m)]
        case Op.SEND_F:
            return [Action(Op.FORWARD, chunk, m)]
        case Op.REDUCE:
            return [Action(Op.WEIGHT_GRAD, chunk, i) for i in range(schedule.num_microbatches)]
        case Op.STEP:
            return [Action(Op.REDUCE, c) for c in range(schedule.num_chunks) if schedule.stage_of(c) == rank]
        case _:
            return []


def _arrival(schedule: Schedule, rank: int, op: Op, chunk: int, source: int, microbatch: int) -> list[Action]:
    """What brings a chunk its input: the source's own Action on this rank, or its send and the receive that was posted for it."""
    if not 0 <= source < schedule.num_chunks:
        return []
    if schedule.stage_of(source) == rank:
        return [Action(op, source, microbatch)]
    send, receive = (Op.SEND_F, Op.RECV_F) if op is Op.FORWARD else (Op.SEND_B, Op.RECV_B)
    return [Action(send, source, microbatch), Action(receive, chunk, microbatch)]
