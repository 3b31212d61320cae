"""The transformer, written once: a model chunk is some consecutive layers, with the embedding and the head where it has them.

    ids ─▶ embed ─▶ [ x + o(attend(qkv(norm x)))  ─▶  x + down(act(up(norm x))) ] × layers ─▶ norm ─▶ head ─▶ loss

Families differ by what ModelSpec says of norm, positions, act, biases and window; up stands for gate and up where act is SwiGLU.
It knows no rank: a chunk builds only the tensors it holds, each cut by the tp Communicator of its Place.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from rayplane.comm.communicator import Communicator
from rayplane.comm.functions import Rows
from rayplane.errors import Problem, SpecError
from rayplane.model.attention import Attention, Flow, rope_table
from rayplane.model.context import mask_of
from rayplane.model.embedding import Embedding, Positions
from rayplane.model.layers import Bias, ColumnLinear, Place, RowLinear, gelu, swiglu
from rayplane.model.loss import Head
from rayplane.model.norms import stream_norm
from rayplane.model.parameter import Weight
from rayplane.model.presence import around
from rayplane.model.tiles import Documents
from rayplane.model.window import band
from rayplane.spec.layout import zigzag
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor


class Block(nn.Module):
    """One layer: attention and feed-forward, each a residual with a norm before it."""

    def __init__(self, place: Place, spec: ModelSpec, tensors: dict[str, TensorSpec]):
        super().__init__()
        up = ("gate", "up") if spec.act == "swiglu" else ("up",)
        self.attn_norm = stream_norm(place, spec, tensors, "attn_norm")
        self.attention = Attention(place, spec, tensors)
        self.o_bias = Bias(place, tensors["o_bias"]) if spec.o_bias else None
        self.mlp_norm = stream_norm(place, spec, tensors, "mlp_norm")
        self.up = ColumnLinear(place, [tensors[n] for n in up], [tensors[f"{n}_bias"] for n in up] if spec.mlp_bias else ())
        self.down = RowLinear(place, tensors["down"])
        self.down_bias = Bias(place, tensors["down_bias"]) if spec.mlp_bias else None
        self._act = swiglu if spec.act == "swiglu" else gelu
        self._place = place

    def forward(self, x: Tensor, flow: Flow, rows: Rows) -> Tensor:  # [n, H] -> [n, H]
        return self._place.again("full", self._layer, x, flow, rows)

    def _layer(self, x: Tensor, flow: Flow, rows: Rows) -> Tensor:
        place = self._place
        x = x + place.summed(self.attention(self.attn_norm(x), flow, rows), rows)
        x = x if self.o_bias is None else self.o_bias(x)
        up = self.up(self.mlp_norm(x), rows)
        x = x + place.summed(self.down(place.again("selective", self._act, up)), rows)
        return x if self.down_bias is None else self.down_bias(x)


class ModelChunk(nn.Module):
    """Layers `layers` of the model; the first chunk embeds, the last one has the final norm and the head."""

    def __init__(self, place: Place, spec: ModelSpec, layers: range, first: bool, last: bool, tied: Weight | None = None):
        """`tied` is the embedding of the first chunk where that is on this rank too."""
        super().__init__()
        tensors = {t.name: t for t in spec.tensors()}
        self.embed = Embedding(place, tensors["embed"]) if first else None
        self.positions = Positions(place, tensors["positions"]) if first and spec.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(place.of_layer(n), spec, _of_layer(tensors, i)) for n, i in enumerate(layers))
        self.norm = stream_norm(place, spec, tensors, "norm") if last else None
        shared = self.embed.weight if self.embed is not None else tied
        self.head = Head(place, tensors["embed" if spec.tied else "head"], shared if spec.tied else None) if last else None
        self._spec, self._place = spec, place
        self._flow: Flow | None = None

    def forward(self, x: Tensor, batch: int, seq: int, documents: Documents | None = None) -> Tensor:
        """Ids [B, S] or the residual stream [n, H] -> the residual stream, normed by the last chunk.

        S and n are this rank's part of sequences of `seq` tokens, which see nothing but their own document where `documents` are given.
        """
        flow = self._flow_for(seq, documents, x.device)
        rows = self._place.rows(batch * flow.positions.shape[0])
        if self.embed is not None:
            x = self.embed(x.flatten())
        if self.positions is not None:
            x = self.positions(x, _mine(_restarted(flow.positions, batch, documents), rows, self._place.tp))
        for block in self.blocks:
            x = around(self._place.presence, block, x, flow, rows)
        return around(self._place.presence, self.norm, x) if self.norm is not None else x

    def weights(self) -> list[Weight]:
        """This chunk's weights in the order of forward, each once."""
        return [p for p in self.parameters() if isinstance(p, Weight)]

    def units(self) -> list[tuple[nn.Module, bool]]:
        """The modules whose weights are used at one time, in the order of forward, and whether their backward uses them too."""
        modules = (self.embed, self.positions, *self.blocks, self.norm, self.head)
        return [(m, m not in (self.embed, self.positions, self.head)) for m in modules if m is not None]

    def _flow_for(self, seq: int, documents: Documents | None, device: torch.device) -> Flow:
        if self._flow is None or self._flow.seq != seq or self._flow.positions.device != device:
            self._flow = _flow(self._place, self._spec, seq, device)
        if documents is None:
            return self._flow
        band = self._flow.mask.band if self._flow.mask is not None else None
        return replace(self._flow, mask=mask_of(self._place.cp, seq, documents, self._spec.window, band))


def _flow(place: Place, spec: ModelSpec, seq: int, device: torch.device) -> Flow:
    positions = positions_of(place.cp, seq, device)
    rope = rope_table(spec.rope, spec.head_dim, positions) if spec.positions == "rope" else None
    if rope is None and seq > spec.max_seq:
        raise SpecError(Problem(f"{seq} is more than the {spec.max_seq} learned positions; shorten it", "train.data.seq_len"))
    # Kernels on CUDA take the window's numbers.
    edges = band(spec.window, seq, place.dtype, device) if 0 < spec.window < seq and device.type != "cuda" else None
    return Flow(seq, positions, rope, mask_of(place.cp, seq, None, spec.window, edges))


def _mine(x: Tensor, rows: Rows, tp: Communicator) -> Tensor:  # [N] -> [n]
    """What belongs to this rank's rows of the residual stream."""
    return x if rows is None else x.split(list(rows))[tp.rank]


def _restarted(positions: Tensor, batch: int, documents: Documents | None) -> Tensor:  # [S] -> [B S]
    """Positions of a batch's tokens in their documents. Rotary angles need none: what counts there is how far apart two tokens are."""
    if documents is None:
        return positions.repeat(batch)
    starts = [torch.tensor(s, device=positions.device) for s in documents]
    return torch.cat([positions - s[torch.searchsorted(s, positions, right=True) - 1] for s in starts])


def positions_of(cp: Communicator, seq: int, device: torch.device) -> Tensor:
    """Positions in the sequence of the tokens that a cp rank holds, in its order."""
    return torch.cat([torch.arange(offset, offset + size, device=device) for offset, size in zigzag(seq, cp.size, cp.rank)])


def _of_layer(tensors: dict[str, TensorSpec], layer: int) -> dict[str, TensorSpec]:
    """A layer's tensors by their short names."""
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
