"""How many layers each chunk of a layout gets: as many as make all stages equally long, and where devices differ no more than fit.

cut_by_time    one kind of device                                                  13 + 11, for the head is long
cut_to_fit     each stage by its own seconds for a layer; while a stage does not fit, with at most so many layers as do there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rayplane.plan.machine.recent import Recent
from rayplane.plan.step.memory import StageMemory
from rayplane.plan.step.partition import cut
from rayplane.plan.step.pieces import Pieces
from rayplane.plan.step.pipe import chunks_of_stages, recomputed, stages_of
from rayplane.spec.layout import Layout

Cuts = Recent[tuple[int, ...]]


def cut_by_time(layout: Layout, layers: int, of: Pieces, known: Cuts) -> tuple[int, ...]:
    """Layers per chunk; `known` keeps what was cut before."""
    layer_s, stage_of = _layer_s(layout, layers, of), stages_of(layout)
    key = (layer_s, of.embed.total_s, of.head.total_s, stage_of)
    extra = [0.0] * layout.num_chunks
    extra[0] += of.embed.total_s
    extra[-1] += of.head.total_s
    return known.get(key, lambda: cut([layer_s] * layers, extra, stage_of))


def cut_at_pace(layout: Layout, layers: int, of: Pieces, pace: Sequence[float]) -> tuple[int, ...]:
    """Layers per chunk, where each stage takes so many times as long as it should."""
    layer_s, stage_of = _layer_s(layout, layers, of), stages_of(layout)
    extra = [0.0] * layout.num_chunks
    extra[0] += pace[stage_of[0]] * of.embed.total_s
    extra[-1] += pace[stage_of[-1]] * of.head.total_s
    return cut([layer_s] * layers, extra, stage_of, pace)


def cut_to_fit(
    layout: Layout, layers: int, stages: Sequence[tuple[int, Pieces]], memory: Callable[[Layout], Sequence[StageMemory]]
) -> tuple[int, ...]:
    """Layers per chunk, for the memory of each stage's device and its pieces; as by time alone where no cut is found that fits."""
    stage_of = stages_of(layout)
    extra = [0.0] * layout.num_chunks
    extra[0] += stages[stage_of[0]][1].embed.total_s
    extra[-1] += stages[stage_of[-1]][1].head.total_s
    pace = [_layer_s(layout, layers, of) for _, of in stages]
    most = [layers] * layout.pp
    first: tuple[int, ...] = ()
    while sum(most) >= layers:
        boundaries = cut([1.0] * layers, extra, stage_of, pace, most)
        first = first or boundaries
        limits = _limits(replace(layout, boundaries=boundaries), [room for room, _ in stages], memory)
        if not limits:
            return boundaries
        lower = [min(limits.get(stage, limit), limit) for stage, limit in enumerate(most)]
        if lower == most:
            break
        most = lower
    return first


def _layer_s(layout: Layout, layers: int, of: Pieces) -> float:
    """A layer on average, some of them computed again."""
    return of.layer_s(min(1.0, recomputed(layout, layers) / (layers / layout.num_chunks)))


def _limits(layout: Layout, rooms: Sequence[int], memory: Callable[[Layout], Sequence[StageMemory]]) -> dict[int, int]:
    """Of the stages that do not fit: how many layers might, by what they take without any, and at least one less than now, if any."""
    full, empty = memory(layout), memory(replace(layout, boundaries=(0,) * layout.num_chunks))
    out = {}
    for stage, chunks in enumerate(chunks_of_stages(layout)):
        count, over = sum(layout.boundaries[c] for c in chunks), full[stage].total > rooms[stage]
        if over and count:
            a_layer = (full[stage].total - empty[stage].total) / count
            fits = int((rooms[stage] - empty[stage].total) / a_layer) if a_layer > 0 else 0
            out[stage] = max(0, min(count - 1, fits))
        elif over:
            out[stage] = 0
    return out
