"""What a timeline needs of a layout, as numbers per chunk; and a bound that no order of its Actions can beat.

stage s:  first microbatch on its way ─▶ │ all the work of the stage │ ─▶ last gradient on its way back ─▶ end
          F of the chunks before it         forward, backward             B, or only I, of the chunks before it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from rayplane.spec.layout import Layout, stage_of_chunk
from rayplane.spec.schedule import Op


@dataclass(frozen=True)
class Pipe:
    """Seconds of one microbatch per chunk, of its transfer from each chunk to the next (0 on one stage), and of a chunk's reduction."""

    stage_of: tuple[int, ...]
    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    p2p_s: tuple[float, ...]
    reduce_s: tuple[float, ...]

    @property
    def work(self) -> tuple[tuple[float, ...], ...]:
        """All but the reductions."""
        return self.forward_s, self.input_s, self.weight_s, self.p2p_s

    @cached_property
    def backward_s(self) -> tuple[float, ...]:
        """Both halves of each chunk's backward."""
        return tuple(i + w for i, w in zip(self.input_s, self.weight_s, strict=True))

    @cached_property
    def stage_s(self) -> tuple[float, ...]:
        """Forward and backward of each stage's chunks."""
        return self.by_stage(tuple(f + b for f, b in zip(self.forward_s, self.backward_s, strict=True)))

    def by_stage(self, chunk_s: Sequence[float]) -> tuple[float, ...]:
        """Sums over the chunks of each stage."""
        out = [0.0] * (max(self.stage_of) + 1)
        for stage, seconds in zip(self.stage_of, chunk_s, strict=True):
            out[stage] += seconds
        return tuple(out)

    def seconds(self, op: Op, chunk: int) -> float:
        """Of a full microbatch's compute Action, or of a reduction."""
        match op:
            case Op.FORWARD:
                return self.forward_s[chunk]
            case Op.BACKWARD:
                return self.backward_s[chunk]
            case Op.INPUT_GRAD:
                return self.input_s[chunk]
            case Op.WEIGHT_GRAD:
                return self.weight_s[chunk]
            case _:
                return self.reduce_s[chunk]


def stages_of(layout: Layout) -> tuple[int, ...]:
    """The stage of each chunk."""
    return _stages_of(layout.schedule, layout.pp, layout.num_chunks)


@cache
def _chunks_of_stages(schedule: str, num_stages: int, num_chunks: int) -> tuple[tuple[int, ...], ...]:
    stage_of = _stages_of(schedule, num_stages, num_chunks)
    return tuple(tuple(c for c in range(num_chunks) if stage_of[c] == s) for s in range(num_stages))


def chunks_of_stages(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The chunks of each stage."""
    return _chunks_of_stages(layout.schedule, layout.pp, layout.num_chunks)


def recomputed(layout: Layout, layers: int) -> int:
    """How many of a chunk's layers are computed again in backward."""
    return 0 if layout.recompute == "none" else min(layout.recompute_layers or layers, layers)


@cache
def _stages_of(schedule: str, num_stages: int, num_chunks: int) -> tuple[int, ...]:
    return tuple(stage_of_chunk(schedule, num_stages, c) for c in range(num_chunks))


def lower_bound_s(pipe: Pipe, part: Sequence[float], split: bool) -> float:
    """No order of these microbatches ends sooner. `split`: weight gradients may come after everything else.

    `part` is the size of each microbatch as a share of a full one; all but the last are 1.
    """
    rounds, there_s, back_s, best_s = sum(part), 0.0, 0.0, 0.0
    busy_s, seen = pipe.stage_s, set[int]()
    late_s = pipe.by_stage(pipe.weight_s) if split else (0.0,) * len(busy_s)
    last_s = pipe.weight_s[0] * part[-1] if split else 0.0
    for chunk, stage in enumerate(pipe.stage_of):
        if stage not in seen:
            seen.add(stage)
            returned_s = there_s + rounds * (busy_s[stage] - late_s[stage]) + back_s + (last_s if chunk else rounds * late_s[stage])
            best_s = max(best_s, returned_s, there_s + rounds * busy_s[stage])
        hop_s = pipe.p2p_s[chunk] if chunk < len(pipe.p2p_s) else 0.0
        there_s += (pipe.forward_s[chunk] + hop_s) * part[0]
        back_s += (pipe.input_s[chunk] + hop_s + (0.0 if split else pipe.weight_s[chunk])) * part[-1]
    return max(best_s, there_s + back_s + last_s)
