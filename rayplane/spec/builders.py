"""Builders of schedules: (stages, microbatches, chunks per stage) -> the compute Actions of each rank, in order.

              stage s of p holds at most, of m microbatches    idle, in units of F = I = W, for m of p or more, v chunks a stage
gpipe         m                                                3 (p - 1)
1f1b          p - s                                            3 (p - 1)
interleaved   (2 (p - 1 - s) + (v - 1) r + 1) / v              3 (p - 1) / v              r: microbatches of the first round
zb-h1         p - s whole, p with those that wait for W        p - 1
zb-h2         2 (p - s) - 1 whole                              0 on each stage, and p - 1 where all wait for the last to end its step
zbv           p                                                (p - 1) / 2                for m of 2 p - 1 or more
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

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
    return _weights_late("zb-h1", num_stages, num_microbatches, 1)


def zb_h2(num_stages: int, num_microbatches: int, vpp: int = 1) -> Schedule:
    """Twice the forwards before the first backward, and twice as late weight gradients: no stage is idle between its first and its
    last Action (Qi et al., Zero Bubble, 2023, section 2.2). A step that ends with a norm over all stages is no shorter."""
    return _weights_late("zb-h2", num_stages, num_microbatches, 2)


def zbv(num_stages: int, num_microbatches: int, vpp: int = 2) -> Schedule:
    """Two chunks a stage, laid down and up again, so that the last is beside the first (Qi et al., Zero Bubble, 2023, section 6).

    The phases are those of at least as many microbatches as stages; of fewer, what is left of them.
    """
    p, total = num_stages, max(num_microbatches, num_stages)
    ranks = []
    for s in range(p):
        forward, inputs, weights = ((Action(op, s), Action(op, 2 * p - 1 - s)) for op in (Op.FORWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD))
        whole = [(forward[way], inputs[way], weights[way]) for way in (0, 1)]
        phases: list[tuple[int, tuple[Action, ...]]] = [
            (2 * (p - s) - 1, forward[:1]),
            (s, (forward[1], forward[0])),
            (p - s, whole[1]),
            (total - p, (*whole[0], *whole[1])),
            (s, inputs),
            (p - s, (inputs[0], weights[0])),
            (s, weights[1:]),
            (s, weights[:1]),
        ]
        ranks.append(_in_phases(phases, num_microbatches))
    return Schedule("zbv", num_microbatches, 2 * p, tuple(ranks))


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
    "zb-h2": zb_h2,
    "zbv": zbv,
}
"""Schedules by the name a job gives them. A new one is a function here: (num_stages, num_microbatches, vpp) -> Schedule."""


def _weights_late(name: str, num_stages: int, num_microbatches: int, times: int) -> Schedule:
    """`times` (p - 1 - s) forwards before the first backward of stage s, and weight gradients `times` s microbatches late."""
    ranks = []
    for s in range(num_stages):
        warmup, weights = min(times * (num_stages - 1 - s), num_microbatches), 0
        out = [Action(Op.FORWARD, s, m) for m in range(warmup)]
        for m in range(num_microbatches):
            if warmup + m < num_microbatches:
                out.append(Action(Op.FORWARD, s, warmup + m))
            out.append(Action(Op.INPUT_GRAD, s, m))
            if m >= times * s or warmup + m >= num_microbatches:
                out.append(Action(Op.WEIGHT_GRAD, s, weights))
                weights += 1
        ranks.append((*out, *(Action(Op.WEIGHT_GRAD, s, m) for m in range(weights, num_microbatches))))
    return Schedule(name, num_microbatches, num_stages, tuple(ranks))


def _alternate(forward: Order, backward: Order, warmup: int) -> tuple[Action, ...]:
    """`warmup` forwards, then one forward and one backward in turn, then the backwards that are left."""
    out = [Action(Op.FORWARD, c, m) for c, m in forward[:warmup]]
    for i, (chunk, microbatch) in enumerate(backward):
        if warmup + i < len(forward):
            out.append(Action(Op.FORWARD, *forward[warmup + i]))
        out.append(Action(Op.BACKWARD, chunk, microbatch))
    return tuple(out)


def _in_phases(phases: list[tuple[int, tuple[Action, ...]]], num_microbatches: int) -> tuple[Action, ...]:
    """Each phase so many times over, every Action with its next microbatch; those beyond the last one are left out."""
    following: Counter[Action] = Counter()
    out = []
    for times, group in phases:
        for action in group * times:
            if following[action] < num_microbatches:
                out.append(Action(action.op, action.chunk, following[action]))
            following[action] += 1
    return tuple(out)
