"""Flash attention with its log-sum-exp, forward and backward, for tiles of the scores (Dao, FlashAttention-2, 2023).

    out = softmax(q k^T / sqrt(D)) v         lse = log sum exp of each row of q k^T / sqrt(D)

The backward takes the out and lse of the whole row, so that tiles need no softmax of their own. torch's fused kernels are used: they
are what scaled_dot_product_attention runs, but that gives no log-sum-exp.

            all keys, or up to the query    at the edges of a window
    CPU     fused                           fused, with a part of the band
    CUDA    fused                           fused, by left and right         16 bits, D a multiple of 8 up to 256; dense.py for the rest

    [B, h, R or K, D] queries, keys, values and out; [B, h, R] log-sum-exp in fp32
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rayplane.model.dense import dense, dense_backward
from rayplane.model.tiles import Tile
from rayplane.model.window import part

Tensor = torch.Tensor
aten = torch.ops.aten


def flash(q: Tensor, k: Tensor, v: Tensor, tile: Tile, band: Tensor | None) -> tuple[Tensor, Tensor]:
    """(out, lse) of a tile's queries and keys; `band` is the mask of the window, needed on CPUs where it bites."""
    if q.device.type != "cuda":
        mask = part(band, tile) if band is not None else None
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, _is_causal(tile), attn_mask=mask)
    if not _fused(q):
        return dense(q, k, v, tile.left, tile.right)
    # The kernel takes [B, R, h, D].
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    limits = {"window_size_left": tile.left, "window_size_right": tile.right}
    out, lse, *_ = aten._flash_attention_forward(*rows, None, None, q.shape[2], k.shape[2], 0.0, _is_causal(tile), False, **limits)
    return out.transpose(1, 2), lse


def flash_backward(inputs: Sequence[Tensor], tile: Tile, band: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. `inputs`: the gradient of out, q, k, v, and out and lse over all keys of the rows, contiguous."""
    dout, q, k, v, out, lse = inputs
    if q.device.type != "cuda":
        mask = part(band, tile) if band is not None else None
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse, 0.0, _is_causal(tile), attn_mask=mask)
    if not _fused(q):
        return dense_backward(inputs, tile.left, tile.right)
    # Without dropout the random state is not read; the sequences are not packed, so there are no cumulative lengths.
    none = torch.empty(0, dtype=torch.int64, device=q.device)
    rows = [x.transpose(1, 2) for x in (dout, q, k, v, out)]
    limits = {"window_size_left": tile.left, "window_size_right": tile.right}
    dq, dk, dv = aten._flash_attention_backward(
        *rows, lse, None, None, q.shape[2], k.shape[2], 0.0, _is_causal(tile), none, none, **limits
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _is_causal(tile: Tile) -> bool:
    """As many queries as keys, each up to the query itself."""
    return tile.left < 0 and tile.right == 0


def _fused(q: Tensor) -> bool:
    """Whether CUDA's fused kernel takes such queries."""
    return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
