"""The compute Actions of a stage as bytes, as many as they are and in their order, without making a single one (a test holds them equal
to those of `spec.builders`). A stage runs each kind of Action of each of its chunks by rising microbatch, so that need not be said.

    one_f_one_b(2 stages, 3 microbatches)     0  F0.0 F0.1 B0.0 F0.2 B0.1 B0.2     00 00 01 00 01 01
                                              1  F1.0 B1.0 F1.1 B1.1 F1.2 B1.2     00 01 00 01 00 01

A byte is 4 times the position of the chunk on its stage, plus the kind: 0 forward, 1 backward, 2 and 3 its halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rayplane.spec.layout import split
from rayplane.spec.schedule import Op

KINDS = (Op.FORWARD, Op.BACKWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD)
"""By their number in a program."""
FWD, BWD, INP, WGT = (bytes([kind]) for kind in range(4))
CHUNK = len(KINDS)
"""What a byte grows by from one chunk of a stage to the next."""
MOST_CHUNKS = 256 // CHUNK
"""On a stage."""


class Shape(NamedTuple):
    """Of a schedule."""

    stages: int
    microbatches: int
    vpp: int


def gpipe(of: Shape, stage: int) -> bytes:
    """All forwards, then all backwards."""
    return FWD * of.microbatches + BWD * of.microbatches


def one_f_one_b(of: Shape, stage: int) -> bytes:
    """One forward and one backward in turn, behind a forward for each later stage."""
    return _alternate(FWD * of.microbatches, BWD * of.microbatches, of.stages - 1 - stage)


def interleaved(of: Shape, stage: int) -> bytes:
    """Microbatches in rounds, each chunk by chunk."""
    rounds = max(1, of.microbatches // of.stages)
    sizes = [split(of.microbatches, rounds, i)[1] for i in range(rounds)]
    forward = b"".join(_of(FWD, chunk) * size for size in sizes for chunk in range(of.vpp))
    backward = b"".join(_of(BWD, chunk) * size for size in sizes for chunk in reversed(range(of.vpp)))
    return _alternate(forward, backward, 2 * (of.stages - 1 - stage) + (of.vpp - 1) * sizes[0])


def zb_h1(of: Shape, stage: int) -> bytes:
    """As 1f1b, with weight gradients `stage` microbatches late as long as there are forwards."""
    return _weights_late(of, of.stages - 1 - stage, stage)


def zb_h2(of: Shape, stage: int) -> bytes:
    """The same with twice the forwards first and twice as late."""
    return _weights_late(of, 2 * (of.stages - 1 - stage), 2 * stage)


def zbv(of: Shape, stage: int) -> bytes:
    """The phases of two chunks, down and up again; of few microbatches what is left of them."""
    p, total = of.stages, max(of.microbatches, of.stages)
    down, up = FWD + INP + WGT, _of(FWD, 1) + _of(INP, 1) + _of(WGT, 1)
    # The first phase is ahead by so many forwards, which the fourth then is without.
    ahead = p - stage - 1
    whole = total - p - ahead
    program = down[:1] * (p - stage + ahead) + (up[:1] + down[:1]) * stage + up * (p - stage)
    program += (down + up) * whole + (down[1:] + up) * ahead if whole >= 0 else (down + up) * (total - p)
    program += (down[1:2] + up[1:2]) * stage + down[1:] * (p - stage) + up[2:] * stage + down[2:] * stage
    return program if whole >= 0 and of.microbatches >= p else _first(program, of.microbatches)


PROGRAMS: Mapping[str, Callable[[Shape, int], bytes]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zbv": zbv,
}
"""By the name of the schedule."""


def _of(kind: bytes, chunk: int) -> bytes:
    return bytes([kind[0] + CHUNK * chunk])


def _alternate(forward: bytes, backward: bytes, warmup: int) -> bytes:
    """`warmup` forwards, then one of each in turn, then the backwards that are left."""
    warmup = min(warmup, len(forward))
    pairs = len(forward) - warmup
    turns = bytearray(2 * pairs)
    turns[::2], turns[1::2] = forward[warmup:], backward[:pairs]
    return forward[:warmup] + bytes(turns) + backward[pairs:]


def _weights_late(of: Shape, warmup: int, late: int) -> bytes:
    """`warmup` forwards, then one forward and input gradient in turn, and `late` microbatches behind it the weight gradient."""
    warmup = min(warmup, of.microbatches)
    paired = of.microbatches - warmup
    alone = min(late, paired)
    pairs = (FWD + INP) * alone + (FWD + INP + WGT) * (paired - alone)
    return FWD * warmup + pairs + (INP + WGT) * warmup + WGT * alone


def _first(program: bytes, microbatches: int) -> bytes:
    """Without the Actions beyond the last microbatch."""
    times, out = [0] * 256, bytearray()
    for code in program:
        times[code] += 1
        if times[code] <= microbatches:
            out.append(code)
    return bytes(out)
