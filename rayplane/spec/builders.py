"""Builders of schedules: (stages, microbatches, chunks per stage) -> the compute Actions of each rank, in order.

              holds at most (microbatch x chunk)      bubble, in units of F = I = W (p stages, m microbatches, v chunks)
gpipe         m                                       3 (p - 1)
1f1b          p - s on stage s                        3 (p - 1)
interleaved   about (p - 1) 2 / v + p                 3 (p - 1) / v
zb-h1         p - s forwards, p with weight gradients (p - 1)
zbv           2 p halves                              near 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rayplane.spec.layout import split, stage_of_chunk
from rayplane.spec.schedule import Action, Op, Schedule

Order = list[tuple[int, int]]
"""(chunk, microbatch) in order."""


def gpipe(num_stages: int, num_microbatches: int, vpp: int = 1) -> Schedule:
    """All forwards, then all backwards (Huang et al., GPipe, section 2.3)."""
    microbatches = range(num_microbatches)
    ranks = tuple(
        (*(Action(Op.FORWARD, s, m) for m in microbatches), *(Action(Op.BACKWARD, s, m) for m in microbatches))
        for s in range(num_stages)
    )
    return Schedule("gpipe", num_microbatches, num_stages, ranks)


def one_f_one_b(num_stages: int, num_microbatches: int, vpp: int = 1) -> Schedule:
    """Stage s holds at most `num_stages - s` activations (Narayanan et al., PipeDream-Flush, section 2.2)."""
    order = [[(s, m) for m in range(num_microbatches)] for s in range(num_stages)]
    ranks = tuple(_alternate(order[s], order[s], num_stages - 1 - s) for s in range(num_stages))
    return Schedule("1f1b", num_microbatches, num_stages, ranks)


def interleaved(num_stages: int, num_microbatches: int, vpp: int) -> Schedule:
    """`vpp` chunks a stage, microbatches in rounds of at least one per stage (Narayanan et al., Megatron-LM, 2021, section 2.2).

    Microbatches need not be a multiple of the stages: the first rounds are then longer.
    """
    num_rounds = max(1, num_microbatches // num_stages)
    spans = [split(num_microbatches, num_rounds, i) for i in range(num_rounds)]
    rounds = [range(offset, offset + size) for offset, size in spans]
    ranks = []
    for s in range(num_stages):
        chunks = [v * num_stages + s for v in range(vpp)]
        forward = [(c, m) for r in rounds for c in chunks for m in r]
        backward = [(c, m) for r in rounds for c in reversed(chunks) for m in r]
        ranks.append(_alternate(forward, backward, 2 * (num_stages - 1 - s) + (vpp - 1) * len(rounds[0])))
    return Schedule("interleaved", num_microbatches, num_stages * vpp, tuple(ranks))


def zb_h1(num_stages: int, num_microbatches: int, vpp: int = 1) -> Schedule:
    """Weight gradients fill the bubble at the memory of 1F1B's first stage (Qi et al., Zero Bubble, 2023, section 2)."""
    return _fill("zb-h1", num_stages, num_microbatches, num_stages, lambda s: num_stages - s)


def zbv(num_stages: int, num_microbatches: int, vpp: int = 2) -> Schedule:
    """Two chunks a stage, laid down and up again, so that the last is beside the first (Qi et al., Controllable Memory, 2024)."""
    return _fill("zbv", num_stages, num_microbatches, 2 * num_stages, lambda s: 2 * num_stages)


def forward_only(num_stages: int, num_microbatches: int, vpp: int = 1, name: str = "forward") -> Schedule:
    """No backward: evaluation. Chunks lie as under the schedule `name`."""
    chunks = range(num_stages * vpp)
    ranks = tuple(
        tuple(Action(Op.FORWARD, c, m) for m in range(num_microbatches) for c in chunks if stage_of_chunk(name, num_stages, c) == s)
        for s in range(num_stages)
    )
    return Schedule(name, num_microbatches, num_stages * vpp, ranks)


BUILDERS: Mapping[str, Callable[[int, int, int], Schedule]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zbv": zbv,
}
"""Schedules by the name a job gives them. A new one is a function here: (num_stages, num_microbatches, vpp) -> Schedule."""


def _alternate(forward: Order, backward: Order, warmup: int) -> tuple[Action, ...]:
    """`warmup` forwards, then one forward and one backward in turn, then the backwards that are left."""
    out = [Action(Op.FORWARD, c, m) for c, m in forward[:warmup]]
    for i, (chunk, microbatch) in enumerate(backward):
        if warmup + i < len(forward):
            out.append(Action(Op.FORWARD, *forward[warmup + i]))
        out.append(Action(Op.BACKWARD, chunk, microbatch))
    return tuple(out)


@dataclass(slots=True)
class _Rank:
    """One rank while its list is made: time, the list, and the next microbatch of each chunk by operation."""

    chunks: list[int]
    clock: int = 0
    actions: list[Action] = field(default_factory=list)
    following: dict[tuple[Op, int], int] = field(default_factory=dict)

    def count(self, op: Op) -> int:
        return sum(self.following.get((op, c), 0) for c in self.chunks)


Option = tuple[int, int, int, int, Action]
"""(start, preference, later chunks first, stage, Action)."""
_PREFERENCE = (Op.INPUT_GRAD, Op.FORWARD, Op.WEIGHT_GRAD)


def _fill(name: str, num_stages: int, num_microbatches: int, num_chunks: int, alive: Callable[[int], int]) -> Schedule:
    """List scheduling with F = I = W = 1: always the Action that can start first on any rank; of equal ones I before F before W.

    A rank holds at most `alive(s)` activations whose I is to come, and as many as stage 0 may counting those whose W is to come.
    """
    stage_of = [stage_of_chunk(name, num_stages, c) for c in range(num_chunks)]
    ranks = [_Rank([c for c in range(num_chunks) if stage_of[c] == s]) for s in range(num_stages)]
    ends: dict[Action, int] = {}
    best: dict[int, Option] = {}
    changed = set(range(num_stages))
    for _ in range(3 * num_chunks * num_microbatches):
        for s in changed:
            options = _options(ranks[s], s, (alive(s), alive(0)), num_microbatches, num_chunks - 1, ends)
            best.pop(s, None)
            if options:
                best[s] = min(options, key=lambda o: o[:4])
        start, _, _, stage, action = min(best.values(), key=lambda o: o[:4])
        rank = ranks[stage]
        ends[action] = rank.clock = start + 1
        rank.following[action.op, action.chunk] = action.microbatch + 1
        rank.actions.append(action)
        changed = {stage_of[c] for c in (action.chunk - 1, action.chunk, action.chunk + 1) if 0 <= c < num_chunks}
    return Schedule(name, num_microbatches, num_chunks, tuple(tuple(r.actions) for r in ranks))


def _options(
    rank: _Rank, stage: int, limits: tuple[int, int], num_microbatches: int, last: int, ends: Mapping[Action, int]
) -> list[Option]:
    """What a rank could do next. `limits`: activations whose I is to come, and whose W is to come."""
    forwards = rank.count(Op.FORWARD)
    full = forwards - rank.count(Op.INPUT_GRAD) >= limits[0] or forwards - rank.count(Op.WEIGHT_GRAD) >= limits[1]
    out = []
    for chunk in rank.chunks:
        for preference, op in enumerate(_PREFERENCE):
            action = Action(op, chunk, rank.following.get((op, chunk), 0))
            if action.microbatch < num_microbatches and not (op is Op.FORWARD and full):
                sources = _sources(action, last)
                if all(s in ends for s in sources):
                    start = max([rank.clock, *(ends[s] for s in sources)])
                    out.append((start, preference, -chunk, stage, action))
    return out


def _sources(action: Action, last: int) -> list[Action]:
    """What must be done before an Action."""
    chunk, m = action.chunk, action.microbatch
    if action.op is Op.FORWARD:
        return [Action(Op.FORWARD, chunk - 1, m)] if chunk else []
    if action.op is Op.INPUT_GRAD:
        return [Action(Op.FORWARD, chunk, m), *([Action(Op.INPUT_GRAD, chunk + 1, m)] if chunk < last else [])]
    return [Action(Op.INPUT_GRAD, chunk, m)]
