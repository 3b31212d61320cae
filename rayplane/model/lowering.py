"""Turns the modules of a ModelChunk into ops, and their weights into those of the ops, one at a time.

module                      op                                              weight
RmsNorm, LayerNorm          Norm                                            as it is
ColumnLinear, RowLinear     PackedLinear (bf16 in C++), else PlainLinear    packed, the original freed
Embedding                   Embed                                           as it is, or the head's packed one where they are tied
Attention                   Rotate, Attend                                  -
  over cp                   Rotate, Offer, Attend, Merge, or QueryRing      -
Head                        Norm of the wanted rows, linear                 packed; as it is where torch embeds by it too
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch

from rayplane.kernels.linear import Ending, Packed, Plain, pack, prepack
from rayplane.kernels.native import Native
from rayplane.kernels.op import Op, buffer
from rayplane.kernels.paged import Attend, LayerCache, Rotate
from rayplane.kernels.pointwise import Act, Embed, Norm
from rayplane.kernels.program import Program
from rayplane.kernels.shared import Meeting
from rayplane.model.attention import rope_table
from rayplane.model.axis import AxisGather, AxisSum
from rayplane.model.cache import heads_of
from rayplane.model.layers import Place
from rayplane.model.norms import LayerNorm, RmsNorm
from rayplane.model.parameter import Weight
from rayplane.model.query_ring import QueryRing
from rayplane.model.shared import Together
from rayplane.model.transformer import Block, ModelChunk
from rayplane.spec.model import ModelSpec

Tensor = torch.Tensor


class Room(Protocol):
    """The largest step."""

    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def threads(self) -> int: ...


class Lowering:
    """Makes the ops of one chunk. `x` is its residual stream [tokens, H], `logits` [rows, vocabulary] on the last chunk."""

    def __init__(self, chunk: ModelChunk, spec: ModelSpec, place: Place, room: Room, native: Native | None, together: Together):
        assert not place.sp and place.presence is None, "serving keeps whole weights and whole rows"
        self._chunk, self._spec, self._place, self._room = chunk, spec, place, room
        self._shared, self._striped, self._any_native = together.tp, together.cp, native
        self._device = next(chunk.parameters()).device
        self._native = native if native is not None and native.bf16 and place.dtype == torch.bfloat16 else None
        self._heads = heads_of(spec, place.tp.size, place.tp.rank)
        self._served = torch.tensor(self._heads.served, dtype=torch.int32, device=self._device)
        mlp = cast("Block", chunk.blocks[0]).down.weight.shape[1] if len(chunk.blocks) else 0
        width = self._heads.dim
        self.x = self._buffer(room.tokens, spec.hidden)
        self._normed = self._buffer(room.tokens, spec.hidden)
        self._qkv = self._buffer(room.tokens, (self._heads.count + 2 * self._heads.kv) * width)
        self._attended = self._buffer(room.tokens, self._heads.count * width)
        self._up = self._buffer(room.tokens, mlp * (2 if spec.act == "swiglu" else 1)) if self._native is None else None
        self._acted = self._buffer(room.tokens, mlp)
        self._parts = torch.zeros(room.tokens, spec.hidden, device=self._device) if place.tp.size > 1 and self._shared is None else None
        self._ring = self._ring_buffers() if place.cp.size > 1 and self._striped is None else None
        self.logits = None if chunk.head is None else self._logits()

    def ops(self, caches: Sequence[LayerCache]) -> list[Op]:
        """All ops in order; frees the chunk's own weights as it goes."""
        head = None if self._chunk.head is None else self._head_weight()
        # Ranks meet in every step: none writes logits before all have read those of the step before.
        out: list[Op] = [Meeting(self._striped)] if self._striped is not None and not len(self._chunk.blocks) else []
        out += self._embed(head)
        angles = self._angles()
        for block, cache in zip(self._chunk.blocks, caches, strict=True):
            out += self._layer(cast("Block", block), cache, angles)
        if head is not None:
            out += self._head(head)
        if self._shared is not None and not self._shared.even:
            out.append(self._shared.meeting())
        return out

    def _layer(self, block: Block, cache: LayerCache, angles: Tensor | None) -> list[Op]:
        attention, spec = block.attention, self._spec
        q_norm, k_norm = (None if n is None else n.weight.data for n in (attention.q_norm, attention.k_norm))
        return [
            self._norm(block.attn_norm, self.x, self._normed),
            self._weight(attention.qkv.weight, attention.qkv.bias).product(self._normed, self._qkv, Ending.STORE),
            Rotate(self._qkv, self._heads, cache, angles, q_norm, k_norm, spec.norm_eps),
            *self._attend(cache),
            *self._add(attention.o.weight, block.o_bias.weight if block.o_bias is not None else None, self._attended),
            self._norm(block.mlp_norm, self.x, self._normed),
            *self._feed(block),
            *self._add(block.down.weight, block.down_bias.weight if block.down_bias is not None else None, self._acted),
        ]

    def _attend(self, cache: LayerCache) -> list[Op]:
        scale = 1 / math.sqrt(self._spec.head_dim)
        attend = Attend(self._qkv, self._attended, self._heads, self._served, cache, self._spec.window, scale)
        if self._place.cp.size == 1:
            return [attend]
        if self._striped is not None:
            return self._striped.attention(attend)
        assert self._ring is not None
        queries, parts, lse = self._ring
        part = replace(attend, qkv=queries, out=parts, lse=lse)
        return [QueryRing(self._place.cp, self._qkv, self._attended, part, Program([part], self._any_native, self._room.threads).run)]

    def _ring_buffers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of all cp ranks, what this rank's keys give for them, and its log-sum-exps."""
        tokens, heads = self._room.tokens, self._heads
        queries = torch.zeros(tokens, heads.count * heads.dim, dtype=self._place.dtype, device=self._device)
        lse = torch.zeros(tokens, heads.count, device=self._device)
        return queries, torch.zeros_like(queries, dtype=torch.float32), lse

    def _feed(self, block: Block) -> list[Op]:
        """up and act, in one where C++ multiplies."""
        gated = self._spec.act == "swiglu"
        if self._up is None:
            weight = self._weight(block.up.weight, block.up.bias, gated)
            return [weight.product(self._normed, self._acted, Ending.GATED if gated else Ending.GELU)]
        weight = self._weight(block.up.weight, block.up.bias)
        return [weight.product(self._normed, self._up, Ending.STORE), Act(self._up, self._acted, gated)]

    def _add(self, weight: Weight, bias: Weight | None, x: Tensor) -> list[Op]:
        """Adds a row-parallel product to the residual stream, over tp."""
        if self._place.tp.size == 1:
            return [self._weight(weight, bias).product(x, self.x, Ending.ADD)]
        product = self._weight(weight, None).product(x, self._part(), Ending.STORE_F32)
        return [product, self._sum(None if bias is None else bias.data, add=True)]

    def _part(self) -> Tensor:
        if self._shared is not None:
            return self._shared.part()
        assert self._parts is not None
        return self._parts

    def _sum(self, bias: Tensor | None, add: bool) -> Op:
        if self._shared is not None:
            return self._shared.sum_into(self.x, bias, add)
        assert self._parts is not None
        return AxisSum(self._place.tp, self._parts, self.x, bias, add)

    def _embed(self, head: Packed | Plain | None) -> list[Op]:
        embed, positions = self._chunk.embed, self._chunk.positions
        if embed is None:
            return []
        tp, part = self._place.tp, embed.weight.parts[0].chunk
        # A sum over ranks has the positions once.
        learned = positions.weight.data if positions is not None and tp.rank == 0 else None
        tied = self._chunk.head is not None and self._chunk.head.weight is embed.weight
        table, columns = (head.data, head.columns) if tied and isinstance(head, Packed) else (embed.weight.data, 0)
        out = self.x if tp.size == 1 else self._part()
        op = Embed(table, out, learned, self._spec.hidden, part.offset[0], part.size[0], columns)
        return [op] if tp.size == 1 else [op, self._sum(None, add=False)]

    def _head_weight(self) -> Packed | Plain:
        head = self._chunk.head
        assert head is not None
        tied = self._chunk.embed is not None and head.weight is self._chunk.embed.weight
        return Plain(head.weight.data, None, onednn=False) if tied and self._native is None else self._weight(head.weight, None)

    def _head(self, weight: Packed | Plain) -> list[Op]:
        head, tp = self._chunk.head, self._place.tp
        assert head is not None and self._chunk.norm is not None and self.logits is not None
        first, size = head.weight.parts[0].chunk.offset[0], head.weight.parts[0].chunk.size[0]
        rows = self._buffer(self._room.rows, self._spec.hidden)
        out: list[Op] = [self._norm(self._chunk.norm, self.x, rows, wanted=True)]
        if tp.size == 1 or self._shared is not None:
            out.append(weight.product(rows, self.logits[:, first : first + size], Ending.STORE_F32, wanted=True))
            return out if self._shared is None else [*out, self._shared.meeting()]
        part = torch.zeros(self._room.rows, size, device=self._device)
        sizes = [head.weight.parts[0].tensor.dims[0].span(tp.size, i)[1] for i in range(tp.size)]
        return [*out, weight.product(rows, part, Ending.STORE_F32, wanted=True), AxisGather(tp, part, self.logits, sizes)]

    def _logits(self) -> Tensor:
        if self._shared is not None:
            return self._shared.logits
        if self._striped is not None:
            return self._striped.logits[self._striped.rank]
        return torch.zeros(self._room.rows, self._spec.vocab, device=self._device)

    def _norm(self, norm: RmsNorm | LayerNorm, x: Tensor, out: Tensor, wanted: bool = False) -> Norm:
        bias = norm.bias.data if isinstance(norm, LayerNorm) else None
        return Norm(x, out, norm.weight.data, bias, self._spec.norm_eps, isinstance(norm, LayerNorm), wanted)

    def _weight(self, weight: Weight, bias: Weight | None, gated: bool = False) -> Packed | Plain:
        """A weight for a product; the module's own is empty afterwards."""
        values = None if bias is None else bias.data
        out = prepack(weight.data, values) if self._native is None else pack(self._native, weight.data, values, gated)
        weight.data = weight.data.new_empty(0)
        return out

    def _angles(self) -> Tensor | None:
        if self._spec.positions != "rope":
            return None
        positions = torch.arange(self._room.context, device=self._device)
        cos, sin = rope_table(self._spec.rope, self._spec.head_dim, positions)
        return torch.cat((cos, sin), -1).squeeze(1).contiguous()

    def _buffer(self, rows: int, columns: int) -> Tensor:
        return buffer(rows, columns, self._place.dtype, self._device)
