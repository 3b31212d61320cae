"""The transformer, written once: a model chunk is some consecutive layers, with the embedding and the head where it has them.

    ids ─▶ embed ─▶ [ x + o(attend(qkv(norm x)))  ─▶  x + down(swiglu(gate_up(norm x))) ] × layers ─▶ norm ─▶ head ─▶ loss

It knows no rank: a chunk builds only the tensors it holds, each cut by the tp Communicator of its Place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from rayplane.comm.communicator import Communicator
from rayplane.comm.functions import Rows
from rayplane.model.attention import Attention, rope_table
from rayplane.model.layers import Embedding, Linear, Place, RmsNorm, swiglu
from rayplane.model.loss import Head
from rayplane.model.parameter import Weight
from rayplane.spec.layout import zigzag
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Flow:
    """What all layers of one forward share: the sequence length, rotary angles, and how tokens lie over tp."""

    seq: int
    cos: Tensor
    sin: Tensor
    rows: Rows


class Block(nn.Module):
    """One layer: attention and gated feed-forward, each a residual with a norm before it."""

    def __init__(self, place: Place, spec: ModelSpec, tensors: dict[str, TensorSpec]):
        super().__init__()
        self.attn_norm = RmsNorm(place, tensors["attn_norm"], spec.norm_eps)
        self.attention = Attention(place, spec, tensors)
        self.mlp_norm = RmsNorm(place, tensors["mlp_norm"], spec.norm_eps)
        self.gate_up = Linear(place, [tensors["gate"], tensors["up"]])
        self.down = Linear(place, [tensors["down"]])
        self._place = place

    def forward(self, x: Tensor, flow: Flow) -> Tensor:  # [n, H] -> [n, H]
        return self._place.again("full", self._layer, x, flow)

    def _layer(self, x: Tensor, flow: Flow) -> Tensor:
        place, rows = self._place, flow.rows
        h = place.whole(self.attn_norm(x), rows)
        x = x + place.summed(self.attention(h, flow.seq, flow.cos, flow.sin), rows)
        h = place.whole(self.mlp_norm(x), rows)
        return x + place.summed(self.down(place.again("selective", swiglu, self.gate_up(h))), rows)


class ModelChunk(nn.Module):
    """Layers `layers` of the model; the first chunk embeds, the last one has the final norm and the head."""

    def __init__(self, place: Place, spec: ModelSpec, layers: range, first: bool, last: bool, tied: Weight | None = None):
        """`tied` is the embedding of the first chunk where that is on this rank too."""
        super().__init__()
        tensors = {t.name: t for t in spec.tensors()}
        self.embed = Embedding(place, tensors["embed"]) if first else None
        self.blocks = nn.ModuleList(Block(place, spec, _of_layer(tensors, i)) for i in layers)
        self.norm = RmsNorm(place, tensors["norm"], spec.norm_eps) if last else None
        shared = self.embed.weight if self.embed is not None else tied
        self.head = Head(place, tensors["embed" if spec.tied else "head"], shared if spec.tied else None) if last else None
        self._spec, self._place = spec, place
        self._seq = 0
        self._rope: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, batch: int, seq: int) -> Tensor:
        """Ids [B, S] or the residual stream [n, H] -> the residual stream, normed by the last chunk.

        S and n are this rank's part of sequences of `seq` tokens.
        """
        if self.embed is not None:
            x = self.embed(x.flatten())
        cos, sin = self._rope_for(seq, x.device)
        flow = Flow(seq, cos, sin, self._place.rows(batch * cos.shape[0]))
        for block in self.blocks:
            x = block(x, flow)
        return self.norm(x) if self.norm is not None else x

    def weights(self) -> list[Weight]:
        """This chunk's weights in the order of forward, each once."""
        return [p for p in self.parameters() if isinstance(p, Weight)]

    def _rope_for(self, seq: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._rope is None or self._seq != seq or self._rope[0].device != device:
            self._seq = seq
            positions = positions_of(self._place.cp, seq, device)
            self._rope = rope_table(self._spec.rope, self._spec.head_dim, positions)
        return self._rope


def positions_of(cp: Communicator, seq: int, device: torch.device) -> Tensor:
    """Positions in the sequence of the tokens that a cp rank holds, in its order."""
    return torch.cat([torch.arange(offset, offset + size, device=device) for offset, size in zigzag(seq, cp.size, cp.rank)])


def _of_layer(tensors: dict[str, TensorSpec], layer: int) -> dict[str, TensorSpec]:
    """A layer's tensors by their short names."""
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
