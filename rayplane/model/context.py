"""Causal attention over a sequence that is cut over cp.

Zigzag: the sequence is cut into 2 cp chunks and rank r holds chunks r and 2 cp - 1 - r, so that causal work is even:

    cp 2, chunks 0 1 2 3         rank 0 holds 0 and 3         rank 1 holds 1 and 2
    pairs (query, key) each      0-0 3-0 3-1 3-2 3-3           1-0 1-1 2-0 2-1 2-2

ring    keys and values travel round the ring, each hop behind the attention of the block before; partial results are merged by their
        log-sum-exp in fp32 (Liu et al., Ring Attention, 2023), and the gradients of keys and values travel with them in backward
gather  keys and values of all ranks are gathered; in backward their gradients are reduce-scattered

Only KV heads travel, not one per query head.

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
from rayplane.spec.layout import zigzag

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """A pair of chunks that attend: rows of this rank's queries, rows of the keys at hand, and whether the two are the same chunk."""

    queries: slice
    keys: slice
    causal: bool


@dataclass(frozen=True, slots=True)
class Context:
    """How one sequence lies over cp, and which KV head serves each query head of this rank (None: one each, in order)."""

    cp: Communicator
    seq: int
    kv_of_head: Tensor | None

    def sizes(self) -> list[int]:
        """Tokens on each rank."""
        return [sum(size for _, size in zigzag(self.seq, self.cp.size, r)) for r in range(self.cp.size)]

    def blocks(self, source: int) -> Iterator[Block]:
        """What this rank's queries have to do with the keys of rank `source`."""
        for query, rows in self._chunks(self.cp.rank):
            for key, columns in self._chunks(source):
                if key <= query and rows.stop > rows.start and columns.stop > columns.start:
                    yield Block(rows, columns, key == query)

    def heads(self, x: Tensor) -> Tensor:  # [B, k, S, D] -> [B, h, S, D]
        """Keys or values laid out by query head."""
        return x if self.kv_of_head is None else x.index_select(1, self.kv_of_head)

    def add_by_kv_head(self, total: Tensor, grad: Tensor) -> None:  # [B, k, S, D] += [B, h, S, D]
        """The gradients of all query heads that a KV head serves, in fp32."""
        if self.kv_of_head is None:
            total += grad
        else:
            total.index_add_(1, self.kv_of_head, grad.to(total.dtype))

    def _chunks(self, rank: int) -> list[tuple[int, slice]]:
        """(number in the sequence, rows on its rank) of a rank's two chunks."""
        (_, first), (_, second) = zigzag(self.seq, self.cp.size, rank)
        return [(rank, slice(0, first)), (2 * self.cp.size - 1 - rank, slice(first, first + second))]


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, context: Context, method: str) -> Tensor:
        out, lse = torch.zeros(q.shape, device=q.device), torch.full(q.shape[:3], -torch.inf, device=q.device)
        mine = torch.stack((k, v))
        for source, kv in _round(mine, context) if method == "ring" else enumerate(_gathered(mine, context)):
            for block in context.blocks(source):
                keys, values = (context.heads(x[:, :, block.keys]) for x in kv)
                _merge(out, lse, block.queries, *flash(q[:, :, block.queries], keys, values, block.causal))
        ctx.context, ctx.grads_of_keys = context, _ring_grads if method == "ring" else _gather_grads
        ctx.save_for_backward(q, mine, out, lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, mine, out, lse = ctx.saved_tensors
        dq = torch.zeros(q.shape, device=q.device)
        dk, dv = ctx.grads_of_keys((q, out.to(q.dtype), lse, dout.contiguous()), mine, dq, ctx.context)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None


def _ring_grads(known: Sequence[Tensor], mine: Tensor, dq: Tensor, context: Context) -> Tensor:
    """Gradients of this rank's keys and values, which have been round the ring; what its queries get is added to dq."""
    dkv: Tensor | None = None
    for source, kv in _round(mine, context):
        grads = _block_grads(known, kv, dq, context, source)
        # What the ranks before have added to the gradients of these keys arrives now; what is here goes on.
        dkv = grads if dkv is None else grads.add_(_hop(dkv, context, source)())
    assert dkv is not None
    return _hop(dkv, context, context.cp.rank)()


def _gather_grads(known: Sequence[Tensor], mine: Tensor, dq: Tensor, context: Context) -> Tensor:
    """The same, with each rank's part of the gradients of all keys summed at their owner."""
    parts = [_block_grads(known, kv, dq, context, source) for source, kv in enumerate(_gathered(mine, context))]
    return context.cp.reduce_scatter(torch.cat([p.movedim(3, 0) for p in parts]), context.sizes()).movedim(0, 3)


def attend(q: Tensor, k: Tensor, v: Tensor, context: Context, method: str) -> Tensor:
    """Causal attention of this rank's queries [B, h, S, D] over the whole sequence, given its own keys and values [B, k, S, D]."""
    return _Attend.apply(q, k, v, context, method)


def _block_grads(known: Sequence[Tensor], kv: Tensor, dq: Tensor, context: Context, source: int) -> Tensor:
    """Add to dq what the keys of rank `source` contribute; returns the gradients of those keys and values, fp32 [2, B, k, S, D]."""
    q, out, lse, dout = known
    dkv = torch.zeros(kv.shape, device=kv.device)
    for block in context.blocks(source):
        rows, columns = block.queries, block.keys
        keys, values = (context.heads(x[:, :, columns]) for x in kv)
        inputs = (dout[:, :, rows], q[:, :, rows], keys, values, out[:, :, rows], lse[:, :, rows])
        part_q, part_k, part_v = flash_backward([x.contiguous() for x in inputs], block.causal)
        dq[:, :, rows] += part_q
        context.add_by_kv_head(dkv[0, :, :, columns], part_k)
        context.add_by_kv_head(dkv[1, :, :, columns], part_v)
    return dkv


def _merge(out: Tensor, lse: Tensor, rows: slice, part: Tensor, part_lse: Tensor) -> None:
    """Fold one block's attention into the running result: weights exp(lse - total) (Dao, FlashAttention, appendix B)."""
    before, total = lse[:, :, rows], torch.logaddexp(lse[:, :, rows], part_lse)
    out[:, :, rows] = out[:, :, rows] * (before - total).exp()[..., None] + part * (part_lse - total).exp()[..., None]
    lse[:, :, rows] = total


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


def _gathered(mine: Tensor, context: Context) -> list[Tensor]:
    """Keys and values of every rank, [2, B, k, S, D] each."""
    rows = context.cp.all_gather(mine.movedim(3, 0), context.sizes())
    return [part.movedim(0, 3) for part in rows.split(context.sizes())]
