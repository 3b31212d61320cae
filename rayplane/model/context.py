"""Attention tile by tile: over a sequence that is cut over cp, over documents that are kept apart, over a sliding window.

Zigzag: the sequence is cut into 2 cp chunks and rank r holds chunks r and 2 cp - 1 - r, so that causal work is even:

    cp 2, chunks 0 1 2 3         rank 0 holds 0 and 3         rank 1 holds 1 and 2
    pairs (query, key) each      0-0 3-0 3-1 3-2 3-3           1-0 1-1 2-0 2-1 2-2

ring    keys and values travel round the ring, each hop behind the attention of the one before; partial results are merged by their
        log-sum-exp in fp32 (Liu et al., Ring Attention, 2023), and the gradients of keys and values travel with them in backward
gather  keys and values of all ranks are gathered; in backward their gradients are reduce-scattered

Only KV heads travel, not one per query head. What a query does not see is in no tile (tiles.py): not masked, but not computed.

    B batch   h query heads   k KV heads   S tokens of this rank   D head dim
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import Function

from rayplane.comm.communicator import Communicator
from rayplane.model.flash import flash, flash_backward
from rayplane.model.tiles import Documents, Tile, spans, tiles
from rayplane.spec.layout import zigzag

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """What the queries of this rank see: tiles with the keys of each cp rank, the same in every layer."""

    tiles: tuple[tuple[Tile, ...], ...]
    band: Tensor | None
    """The scores' mask of a sliding window."""


@dataclass(frozen=True, slots=True)
class Context:
    """How one sequence lies over cp, what is seen of it, and which KV head serves each query head of this rank (None: in order)."""

    cp: Communicator
    seq: int
    mask: Mask
    kv_of_head: Tensor | None

    def sizes(self) -> list[int]:
        """Tokens on each rank."""
        return [sum(size for _, size in zigzag(self.seq, self.cp.size, r)) for r in range(self.cp.size)]

    def heads(self, x: Tensor) -> Tensor:  # [B, k, S, D] -> [B, h, S, D]
        """Keys or values laid out by query head."""
        return x if self.kv_of_head is None else x.index_select(1, self.kv_of_head)

    def add_by_kv_head(self, total: Tensor, grad: Tensor) -> None:  # [B, k, S, D] += [B, h, S, D]
        """The gradients of all query heads that a KV head serves, in fp32."""
        if self.kv_of_head is None:
            total += grad
        else:
            total.index_add_(1, self.kv_of_head, grad.to(total.dtype))


def mask_of(cp: Communicator, seq: int, documents: Documents | None, window: int, band: Tensor | None) -> Mask | None:
    """The mask of a batch; None where the whole sequence is here and only causal, which needs no tiles."""
    if documents is not None and all(len(starts) == 1 for starts in documents):
        documents = None
    window = window if window < seq else 0
    if cp.size == 1 and documents is None and not window:
        return None
    mine = spans(seq, cp.size, cp.rank)
    return Mask(tuple(tiles(mine, spans(seq, cp.size, source), documents, window) for source in range(cp.size)), band)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, context: Context, method: str) -> Tensor:
        # The diagonal tiles come first and write every row once; the others are merged into that. [B, S, h, D] lies as what comes next.
        (batch, heads, rows, dim), dtype = q.shape, torch.float32 if context.cp.size > 1 else q.dtype
        out = torch.empty((batch, rows, heads, dim), dtype=dtype, device=q.device).transpose(1, 2)
        lse = torch.empty((batch, heads, rows), device=q.device)
        mine = torch.stack((k, v))
        for source, kv in _round(mine, context) if method == "ring" else _all(mine, context):
            for tile in context.mask.tiles[source]:
                keys, values = (context.heads(x[tile.samples, :, tile.keys]) for x in kv)
                part = flash(q[tile.samples, :, tile.queries], keys, values, tile, context.mask.band)
                _merge(out[tile.samples, :, tile.queries], lse[tile.samples, :, tile.queries], *part, tile.diagonal)
        out = out.to(q.dtype)
        ctx.context, ctx.grads_of_keys = context, _ring_grads if method == "ring" else _gather_grads
        ctx.save_for_backward(q, mine, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, mine, out, lse = ctx.saved_tensors
        dq = torch.zeros(q.shape, device=q.device)
        dk, dv = ctx.grads_of_keys((q, out, lse, dout), mine, dq, ctx.context)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None


def _ring_grads(known: Sequence[Tensor], mine: Tensor, dq: Tensor, context: Context) -> Tensor:
    """Gradients of this rank's keys and values, which have been round the ring; what its queries get is added to dq."""
    dkv: Tensor | None = None
    for source, kv in _round(mine, context):
        grads = _grads(known, kv, dq, context, source)
        # What the ranks before have added to the gradients of these keys arrives now; what is here goes on.
        dkv = grads if dkv is None else grads.add_(_hop(dkv, context, source)())
    assert dkv is not None
    return _hop(dkv, context, context.cp.rank)() if context.cp.size > 1 else dkv


def _gather_grads(known: Sequence[Tensor], mine: Tensor, dq: Tensor, context: Context) -> Tensor:
    """The same, with each rank's part of the gradients of all keys summed at their owner."""
    by_source = {source: _grads(known, kv, dq, context, source) for source, kv in _all(mine, context)}
    parts = [by_source[source] for source in range(context.cp.size)]
    return context.cp.reduce_scatter(torch.cat([p.movedim(3, 0) for p in parts]), context.sizes()).movedim(0, 3)


def attend(q: Tensor, k: Tensor, v: Tensor, context: Context, method: str) -> Tensor:
    """Attention of this rank's queries [B, h, S, D] over the whole sequence, given its own keys and values [B, k, S, D]."""
    return _Attend.apply(q, k, v, context, method)


def _grads(known: Sequence[Tensor], kv: Tensor, dq: Tensor, context: Context, source: int) -> Tensor:
    """Add to dq what the keys of rank `source` contribute; returns the gradients of those keys and values, fp32 [2, B, k, S, D]."""
    q, out, lse, dout = known
    dkv = torch.zeros(kv.shape, device=kv.device)
    for tile in context.mask.tiles[source]:
        rows, columns = (tile.samples, slice(None), tile.queries), (tile.samples, slice(None), tile.keys)
        keys, values = (context.heads(x[columns]) for x in kv)
        inputs = (dout[rows], q[rows], keys, values, out[rows], lse[rows])
        part_q, part_k, part_v = flash_backward([x.contiguous() for x in inputs], tile, context.mask.band)
        dq[rows] += part_q
        context.add_by_kv_head(dkv[0][columns], part_k)
        context.add_by_kv_head(dkv[1][columns], part_v)
    return dkv


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, first: bool) -> None:
    """Fold one tile's attention into the result of its rows: weights exp(lse - total) (Dao, FlashAttention, appendix B)."""
    if first:
        out.copy_(part)
        lse.copy_(part_lse)
        return
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp()[..., None]).add_(part * (part_lse - total).exp()[..., None])
    lse.copy_(total)


def _round(mine: Tensor, context: Context) -> Iterator[tuple[int, Tensor]]:
    """(rank, its keys and values) for every rank, own first; the next is under way while this one is worked on."""
    cp, kv = context.cp, mine
    for step in range(cp.size):
        following = _hop(kv, context, (cp.rank - step - 1) % cp.size) if step < cp.size - 1 else None
        yield (cp.rank - step) % cp.size, kv
        if following is not None:
            kv = following()


def _hop(x: Tensor, context: Context, source: int) -> Callable[[], Tensor]:
    """Send x to the next rank and receive rank `source`'s from the one before; both are under way until the result is asked for."""
    size = context.sizes()[source]
    return context.cp.start_shift(x, (*x.shape[:3], size, x.shape[-1]))


def _all(mine: Tensor, context: Context) -> Iterator[tuple[int, Tensor]]:
    """The same by one all-gather."""
    cp, sizes = context.cp, context.sizes()
    parts = [part.movedim(0, 3) for part in cp.all_gather(mine.movedim(3, 0), sizes).split(sizes)]
    for step in range(cp.size):
        source = (cp.rank - step) % cp.size
        yield source, parts[source]
