"""A rank's part of a published model, for serving: its stage's layers, of each what its tp rank holds, and nothing else.

source ─▶ boxes of this rank's weights ─▶ ModelChunk, in the precision it serves in ─▶ (rayplane.model.lowered)
"""

from __future__ import annotations

from pathlib import Path

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.layers import Place
from rayplane.model.parameter import GradWork
from rayplane.model.transformer import ModelChunk
from rayplane.model.weights import open_weights
from rayplane.spec.model import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load_chunk(path: Path, spec: ModelSpec, dtype: str, mesh: Mesh) -> tuple[ModelChunk, Place]:
    """Built and filled on the rank's device. SpecError where the weights at `path` are not those of `spec`."""
    source = open_weights(path, spec)
    place = Place(mesh.tp, mesh.cp, GradWork(defer=False), DTYPES[dtype])
    stage, last = mesh.coord.pp, mesh.layout.pp - 1
    with torch.device(mesh.device):
        chunk = ModelChunk(place, spec, mesh.layout.layers_of_chunk(stage), stage == 0, stage == last)
    with torch.no_grad():
        for weight in chunk.weights():
            for part, view in weight.views(weight.data):
                view.copy_(source.read(part.tensor.name, part.chunk))
    return chunk, place
