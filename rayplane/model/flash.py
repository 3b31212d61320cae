"""Flash attention with its log-sum-exp, forward and backward, for blocks of a cut sequence (Dao, FlashAttention-2, 2023).

    out = softmax(q k^T / sqrt(D)) v         lse = log sum exp of each row of q k^T / sqrt(D)

The backward takes the out and lse of the whole row, so that blocks need no softmax of their own. torch's fused kernels are used: they
are what scaled_dot_product_attention runs, but that gives no log-sum-exp.

    [B, h, S, D] queries, keys, values and out; [B, h, S] log-sum-exp in fp32
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(out, lse). `causal` needs as many keys as queries."""
    if q.device.type == "cuda":
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse


def flash_backward(inputs: Sequence[Tensor], causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. `inputs`: the gradient of out, q, k, v, and out and lse over all blocks of the rows."""
    dout, q, k, v, out, lse = inputs
    if q.device.type != "cuda":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse, 0.0, causal)
    # Without dropout the random state is not read; the sequences are not packed, so there are no cumulative lengths.
    none = torch.empty(0, dtype=torch.int64, device=q.device)
    return aten._scaled_dot_product_flash_attention_backward(
        dout, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, none, none
    )
