"""The reference model in plain torch, as torch's own tutorials write it, for the peers that take any module."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from reference import BETAS, EPS, LR, SEQ_LEN, SPEC, WEIGHT_DECAY
from torch import nn

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, S, h, D]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def angles() -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, [S, 1, D / 2] each."""
    table = torch.outer(torch.arange(SEQ_LEN), 1.0 / SPEC.rope.theta ** (torch.arange(0, SPEC.head_dim, 2) / SPEC.head_dim))
    return table.cos()[:, None], table.sin()[:, None]


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        hidden, width, kv = SPEC.hidden, SPEC.heads * SPEC.head_dim, SPEC.kv_heads * SPEC.head_dim
        self.attn_norm, self.mlp_norm = nn.RMSNorm(hidden, SPEC.norm_eps), nn.RMSNorm(hidden, SPEC.norm_eps)
        self.q, self.k, self.v = (nn.Linear(hidden, n, bias=False) for n in (width, kv, kv))
        self.o = nn.Linear(width, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, SPEC.mlp, bias=False), nn.Linear(hidden, SPEC.mlp, bias=False)
        self.down = nn.Linear(SPEC.mlp, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (m(h).unflatten(-1, (-1, SPEC.head_dim)) for m in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Chunk(nn.Module):
    """Some layers, with the embedding and the head where they belong."""

    def __init__(self, layers: range, first: bool, last: bool):
        super().__init__()
        self.embed = nn.Embedding(SPEC.vocab, SPEC.hidden) if first else None
        self.layers = nn.ModuleDict({str(i): Block() for i in layers})
        self.norm = nn.RMSNorm(SPEC.hidden, SPEC.norm_eps) if last else None
        self.head = nn.Linear(SPEC.hidden, SPEC.vocab, bias=False) if last else None
        for name, table in zip(("cos", "sin"), angles(), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.layers.values():
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def load(model: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Take the initial weights; the modules are named as ModelSpec names its tensors."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(tensors[name.removesuffix(".weight")]))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(groups: list[list[nn.Parameter]]) -> torch.optim.AdamW:
    """The reference optimizer: matrices decay, norms do not. Each group is updated by a call of its own."""
    cut = [(ps, decay) for group in groups for decay in (True, False) if (ps := [p for p in group if (p.dim() > 1) is decay])]
    parts = [{"params": ps, "weight_decay": WEIGHT_DECAY if decay else 0.0} for ps, decay in cut]
    return torch.optim.AdamW(parts, lr=LR, betas=BETAS, eps=EPS, fused=True)
