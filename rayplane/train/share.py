"""One rank's share of a checkpoint: what it owns of the state, and of what replicas hold alike some of the tensors.

piece "exp_avg/layers.0.q", rows [0, 8) on replicas 0 and 1       share of replica crc32(name) mod 2: key "exp_avg/layers.0.q@0,0"
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.checkpoint_source import crc32_of
from rayplane.spec.manifest import Box
from rayplane.spec.sharding import Chunk, owned_of
from rayplane.train.state import Piece

Tensor = torch.Tensor
State = Iterable[Piece]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is: steps done, samples taken, and which data they came from (its fingerprint)."""

    step: int = 0
    samples: int = 0
    data: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """Copies on the host, by key, and which box of its tensor each is."""

    file: str
    tensors: dict[str, Tensor]
    chunks: Mapping[str, Chunk]

    def boxes(self) -> dict[str, Box]:
        """With their checksums, which take a while."""
        return {key: Box(c.offset, c.size, self.file, key, crc32_of(self.tensors[key])) for key, c in self.chunks.items()}


def copied(state: State, mesh: Mesh) -> Share:
    """This rank's share as it is now."""
    tensors: dict[str, Tensor] = {}
    chunks: dict[str, Chunk] = {}
    for key, chunk, values in mine(state, mesh):
        tensors[key] = torch.empty(values.shape, dtype=values.dtype).copy_(values)
        chunks[key] = chunk
    return Share(file_name(mesh.rank), tensors, chunks)


def mine(state: State, mesh: Mesh) -> Iterator[tuple[str, Chunk, Tensor]]:
    """(key, box of the global tensor, values) of what this rank has to write."""
    for piece in state:
        owned = owned_of(piece.part.tensor, mesh.layout, mesh.coord)
        if owned is None or zlib.crc32(piece.name.encode()) % piece.num_copies != piece.copy:
            continue
        if (chunk := owned.overlap(piece.part.chunk)) is not None:
            yield f"{piece.name}@{','.join(map(str, chunk.offset))}", chunk, piece.data[chunk.within(piece.part.chunk).slices].detach()


def file_name(rank: int) -> str:
    """Of a rank's share."""
    return f"rank-{rank:05d}.safetensors"
