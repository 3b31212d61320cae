"""Builders of schedules: (stages, microbatches, chunks per stage) -> the compute Actions of each rank, in order.

              stage s of p holds at most, of m microbatches    idle, in units of F = I = W, for m of p or more, v chunks a stage
gpipe         m                                                3 (p - 1)
1f1b          p - s                                            3 (p - 1)
interleaved   (2 (p - 1 - s) + (v - 1) r + 1) / v              3 (p - 1) / v              r: microbatches of the first round
zb-h1         p - s whole, p with those that wait for W        p - 1
zbv           p                                                below p
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
    """1F1B whose weight gradients are `s` microbatches late on stage s, so that they fill the drain at the memory of 1F1B's first
    stage (Qi et al., Zero Bubble, 2023, section 2.1)."""
    ranks = []
    for s in range(num_stages):
        warmup, weights = min(num_stages - 1 - s, num_microbatches), 0
        out = [Action(Op.FORWARD, s, m) for m in range(warmup)]
        for m in range(num_microbatches):
            if warmup + m < num_microbatches:
                out.append(Action(Op.FORWARD, s, warmup + m))
            out.append(Action(Op.INPUT_GRAD, s, m))
            if m >= s or warmup + m >= num_microbatches:
                out.append(Action(Op.WEIGHT_GRAD, s, weights))
                weights += 1
        ranks.append((*out, *(Action(Op.WEIGHT_GRAD, s, m) for m in range(weights, num_microbatches))))
    return Schedule("zb-h1", num_microbatches, num_stages, tuple(ranks))


def zbv(num_stages: int, num_microbatches: int, vpp: int = 2) -> Schedule:
    """Two chunks a stage, laid down and up again, so that the last is beside the first (Qi et al., Controllable Memory, 2024)."""
    return _fill("zbv", num_stages, num_microbatches, 2 * num_stages, 2 * num_stages)


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


_PREFERENCE = (Op.INPUT_GRAD, Op.FORWARD, Op.WEIGHT_GRAD)


@dataclass(slots=True)
class _Rank:
    """One rank while its list is made: its chunks, those that come last first, and its list so far."""

    chunks: list[int]
    limit: int
    """Activations whose W is to come that it may hold."""
    actions: list[Action] = field(default_factory=list)

    def choose(self, done: Mapping[Op, list[int]], num_microbatches: int) -> Action | None:
        """What it does next, given how many microbatches of every chunk are through; None when it has to wait."""
        full = sum(done[Op.FORWARD][c] - done[Op.WEIGHT_GRAD][c] for c in self.chunks) >= self.limit
        for op in _PREFERENCE:
            for chunk in () if op is Op.FORWARD and full else self.chunks:
                if done[op][chunk] < min(num_microbatches, _fed(done, op, chunk)):
                    return Action(op, chunk, done[op][chunk])
        return None


def _fill(name: str, num_stages: int, num_microbatches: int, num_chunks: int, limit: int) -> Schedule:
    """List scheduling with F = I = W = 1: in each unit of time every rank does what it can, I before F before W, late chunks first."""
    stage_of = [stage_of_chunk(name, num_stages, c) for c in range(num_chunks)]
    ranks = [_Rank([c for c in reversed(range(num_chunks)) if stage_of[c] == s], limit) for s in range(num_stages)]
    done = {op: [0] * num_chunks for op in _PREFERENCE}
    while min(done[Op.WEIGHT_GRAD]) < num_microbatches:
        chosen = [(rank, action) for rank in ranks if (action := rank.choose(done, num_microbatches))]
        for rank, action in chosen:
            rank.actions.append(action)
            done[action.op][action.chunk] += 1
    return Schedule(name, num_microbatches, num_chunks, tuple(tuple(r.actions) for r in ranks))


def _fed(done: Mapping[Op, list[int]], op: Op, chunk: int) -> int:
    """For how many microbatches an operation of a chunk has what it needs."""
    if op is Op.FORWARD:
        return done[op][chunk - 1] if chunk else done[op][chunk] + 1
    if op is Op.WEIGHT_GRAD:
        return done[Op.INPUT_GRAD][chunk]
    after = done[op][chunk + 1] if chunk + 1 < len(done[op]) else done[Op.FORWARD][chunk]
    return min(after, done[Op.FORWARD][chunk])
