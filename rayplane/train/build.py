"""A rank's part of the model, built with fresh weights: only its stage's chunks, and of them only what its tp rank holds.

    layout, rank ─▶ Place ─▶ ModelChunk per chunk of the stage ─▶ Gradients (the memory of weights and gradients) ─▶ initial weights

Under ZeRO-3 no more than one bucket is whole at a time, here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.layers import Place
from rayplane.model.parameter import GradWork, Weight
from rayplane.model.transformer import ModelChunk
from rayplane.spec.job import TrainSection
from rayplane.spec.model import ModelSpec
from rayplane.train.gradients import Gradients
from rayplane.train.init import initialise
from rayplane.train.residence import Residence

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of the model, by chunk."""

    place: Place
    chunks: dict[int, ModelChunk]
    gradients: dict[int, Gradients]
    presence: Residence | None
    """The weights that come and go, under ZeRO-3."""


def build_part(spec: ModelSpec, train: TrainSection, mesh: Mesh) -> Part:
    """This rank's part of the model of a training job."""
    layout = mesh.layout
    presence = Residence(mesh.shard) if layout.zero > 2 else None
    place = Place(
        tp=mesh.tp,
        cp=mesh.cp,
        # Putting weight gradients off pays where there is communication to hide them behind.
        grads=GradWork(defer=mesh.tp.size > 1),
        dtype=DTYPES[train.precision],
        sp=layout.sp,
        cp_method=layout.cp_method,
        recompute=layout.recompute,
        recompute_layers=layout.recompute_layers,
        presence=presence,
    )
    chunks = _chunks(spec, place, mesh)
    gradients = _gradients(chunks, mesh)
    for c, owner in gradients.items():
        for bucket in owner.buckets:
            bucket.fill(lambda weights: initialise(weights, train.seed))
        if presence is not None:
            presence.move_in(chunks[c].units(), owner.buckets)
    return Part(place, chunks, gradients, presence)


def _chunks(spec: ModelSpec, place: Place, mesh: Mesh) -> dict[int, ModelChunk]:
    """This stage's chunks, in model order."""
    chunks: dict[int, ModelChunk] = {}
    for c in mesh.layout.chunks_of_stage(mesh.coord.pp):
        first, last = c == 0, c == mesh.layout.num_chunks - 1
        embed = chunks[0].embed if 0 in chunks else None
        tied = embed.weight if embed is not None else None
        chunks[c] = ModelChunk(place, spec, mesh.layout.layers_of_chunk(c), first, last, tied)
    return chunks


def _gradients(chunks: dict[int, ModelChunk], mesh: Mesh) -> dict[int, Gradients]:
    """Gradient memory of each chunk; a weight that two chunks share lies with the first."""
    seen: set[Weight] = set()
    out: dict[int, Gradients] = {}
    for c, chunk in chunks.items():
        units = []
        for module, _ in chunk.units():
            units.append([w for w in module.parameters() if isinstance(w, Weight) and w not in seen])
            seen.update(units[-1])
        spanning = {w for unit in units for w in unit if w.parts[0].tensor.tied and mesh.layout.num_chunks > 1}
        out[c] = Gradients([unit for unit in units if unit], _uses(chunk), spanning, mesh)
    return out


def _uses(chunk: ModelChunk) -> dict[Weight, int]:
    """How many modules of a chunk add to each weight's gradient (a tied embedding: two)."""
    uses: dict[Weight, int] = {}
    for module in chunk.modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(parameter, Weight):
                uses[parameter] = uses.get(parameter, 0) + 1
    return uses
