"""What the chunks of a run of stages take on its own devices: compute and communication of a microbatch, reductions of a step.

layout dp 8 x pp 3, 2 stages on h100-sxm    ──▶    chunks 1 and 2, by the H100s' seconds and links, and what ends their step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.step import compute
from rayplane.plan.step.between import norms_s
from rayplane.plan.step.compute import Microbatch, Seconds
from rayplane.plan.step.pieces import Piece, Pieces
from rayplane.plan.step.pipe import chunks_of_stages, recomputed
from rayplane.plan.step.replicas import Replicas, Unit
from rayplane.plan.step.runs import Run
from rayplane.plan.step.share import chunk_params
from rayplane.plan.step.site import Site
from rayplane.plan.step.states import parameters
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's compute and communication: of a microbatch, and of a step the reduction that is left exposed."""

    index: int
    piece: Piece
    dp: Seconds
    reduce_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """The chunks of a run, and what ends its step: the weights that its first chunk waits for, and the optimizer."""

    chunks: tuple[Chunk, ...]
    weights_s: float
    optimizer_s: float


def stretch(layout: Layout, run: Run, site: Site, work: Microbatch, of: Pieces) -> Stretch:
    """Of the stages of a run."""
    own = run.alone(layout)
    stages = chunks_of_stages(layout)[run.first : run.first + run.stages]
    units, chunk_pieces = _units(layout, work, of, [c for chunks in stages for c in chunks])
    replicas = Replicas.of(own, site.topology, site.network, work)
    each_s = {unit: replicas.each_s(work.share, unit) for unit in set(units.values())}
    reduce_s = _reductions_s(own, replicas, [[(c, units[c]) for c in chunks] for chunks in stages], layout.pp)
    norms = {unit: norms_s(own, site, 2 * unit.layers * work.model.hidden) for unit in each_s}
    held = [parameters(work.share, layout, chunks) for chunks in stages]
    fullest = max(held, key=lambda p: p.cut + p.common)
    return Stretch(
        chunks=tuple(Chunk(c, chunk_pieces[c], each_s[units[c]], reduce_s[c] + norms[units[c]]) for c in units),
        weights_s=replicas.weights_s(units[stages[0][0]], held[0].spanning),
        optimizer_s=compute.optimizer_s(site.device, fullest.held(layout, 1), work.precision, work.offload),
    )


def _units(layout: Layout, work: Microbatch, of: Pieces, chunks: Sequence[int]) -> tuple[dict[int, Unit], dict[int, Piece]]:
    """By chunk; those that are alike share a unit."""
    last, alike = layout.num_chunks - 1, dict[tuple[int, bool, bool], Unit]()
    units, chunk_pieces = {}, {}
    for c in chunks:
        layers = layout.boundaries[c]
        key = (layers, c == 0, c == last)
        chunk_pieces[c] = of.chunk(layers, recomputed(layout, layers), *key[1:])
        if key not in alike:
            alike[key] = Unit(*key, chunk_pieces[c].compute, chunk_params(work.share, layout, c))
        units[c] = alike[key]
    return units, chunk_pieces


def _reductions_s(
    layout: Layout, replicas: Replicas, stages: Sequence[Sequence[tuple[int, Unit]]], num_stages: int
) -> dict[int, float]:
    """By chunk; stages with like chunks are alike."""
    out, known = dict[int, float](), dict[tuple[Unit, ...], tuple[float, ...]]()
    for chunks in stages:
        own = tuple(unit for _, unit in chunks)
        if own not in known:
            known[own] = replicas.reduce_s(own, num_stages if layout.schedule == "interleaved" else 1)
        out.update(zip((c for c, _ in chunks), known[own], strict=True))
    return out
