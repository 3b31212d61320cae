"""What a stage holds as its Actions run, counted from the Action list itself.

F0.0     chunk 0: 1 whole               F  a microbatch's activations are kept
F0.1              2 whole               B  and freed
I0.0              1 whole, 1 half       I  or all but what the weight gradients need: inputs and output gradients of the matrices
W0.0              1 whole               W  which are freed then
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import zip_longest
from operator import ge, mul

import numpy as np
from numpy.typing import NDArray

from rayplane.plan.step.programs import CHUNK, KINDS
from rayplane.spec.schedule import Action, Op, Schedule

Held = tuple[int, ...]
"""Microbatches held at one moment: whole ones of each chunk of a stage, then halves of each."""
Moments = NDArray[np.int32]
"""Several such moments, [moment, microbatches held]."""
COMPARED = 8
"""So many are compared with the others: enough to drop nearly all that do not matter."""
FEW = 8
"""Moments that are compared one by one."""


def fullest(schedule: Schedule) -> tuple[tuple[Held, ...], ...]:
    """Per stage the moments to look at; which of them takes most depends on the chunks' bytes."""
    return tuple(_moments(actions, _chunks(schedule, stage)) for stage, actions in enumerate(schedule.ranks))


def moments(program: bytes, num_chunks: int) -> Moments:
    """Those of a stage, from its program."""
    codes = np.frombuffer(program, np.uint8)
    held = _changes(num_chunks)[codes].cumsum(0, dtype=np.int32)
    rows = held[np.append(codes[1:] % CHUNK != KINDS.index(Op.FORWARD), True)]
    peaks = set[Held]()
    # Nearly all are no more than a few of the fullest: they go before any becomes an object.
    while len(rows) > FEW and len(peaks) < COMPARED:
        most = rows[rows.sum(1).argmax()]
        peaks.add(tuple(most.tolist()))
        rows = rows[(rows > most).any(1)]
    return np.array(_peaks(peaks.union(map(tuple, rows.tolist()))), np.int32)


def most_bytes(held: Iterable[Held] | Moments, whole_bytes: Sequence[int], half_bytes: Sequence[int]) -> int:
    """Bytes at the fullest moment of a stage, for the bytes that one microbatch takes in each of its chunks."""
    sizes = (*whole_bytes, *half_bytes)
    if isinstance(held, np.ndarray):
        at_each: NDArray[np.int64] = held @ np.array(sizes)
        return int(at_each.max())
    most: int = max(sum(map(mul, moment, sizes)) for moment in held)
    return most


def most_of_stages(stages: Sequence[Sequence[Held] | Moments], whole_bytes: Sequence[int], half_bytes: Sequence[int]) -> int:
    """The same of several stages, whose chunks take as much."""
    if all(isinstance(moments, np.ndarray) for moments in stages):
        return most_bytes(np.concatenate(stages), whole_bytes, half_bytes)
    return most_bytes({moment for moments in stages for moment in moments}, whole_bytes, half_bytes)


@cache
def _changes(num_chunks: int) -> NDArray[np.int32]:
    """[program's byte, microbatches held]: what an Action adds."""
    out = np.zeros((CHUNK * num_chunks, 2 * num_chunks), np.int32)
    for chunk in range(num_chunks):
        whole, half = chunk, num_chunks + chunk
        forward, backward, input_grad, weight_grad = range(CHUNK * chunk, CHUNK * (chunk + 1))
        out[[forward, backward, input_grad], whole] = 1, -1, -1
        out[[input_grad, weight_grad], half] = 1, -1
    return out


def _chunks(schedule: Schedule, stage: int) -> list[int]:
    return [c for c in range(schedule.num_chunks) if schedule.stage_of(c) == stage]


def _moments(actions: Sequence[Action], chunks: Sequence[int]) -> tuple[Held, ...]:
    """Moments after which something is freed; before more is kept there is no need to look."""
    index = {chunk: i for i, chunk in enumerate(chunks)}
    held, out = [0] * (2 * len(chunks)), set[Held]()
    for action, following in zip_longest(actions, actions[1:]):
        whole, half = index[action.chunk], index[action.chunk] + len(chunks)
        match action.op:
            case Op.FORWARD:
                held[whole] += 1
            case Op.BACKWARD:
                held[whole] -= 1
            case Op.INPUT_GRAD:
                held[whole] -= 1
                held[half] += 1
            case Op.WEIGHT_GRAD:
                held[half] -= 1
        if following is None or following.op is not Op.FORWARD:
            out.add(tuple(held))
    return _peaks(out)


def _peaks(moments: set[Held]) -> tuple[Held, ...]:
    """Without those that the moments with the most in them exceed."""
    kept: list[Held] = []
    for held in sorted(moments, key=lambda h: (-sum(h), h)):
        if not any(all(map(ge, other, held)) for other in kept[:COMPARED]):
            kept.append(held)
    return tuple(kept)
