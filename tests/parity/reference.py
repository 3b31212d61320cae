"""The same training in plain torch on one device: autograd, textbook formulas, torch's AdamW; only names are rayplane's.

B batch   S sequence   H hidden   D head dim   h heads
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from rayplane.spec.job import OptimizerSection
from rayplane.spec.model import ModelSpec, Rope

Tensor = torch.Tensor
Batch = tuple[Tensor, Tensor]
"""Ids and targets, each [B, S]."""


def logits(
    spec: ModelSpec, weights: dict[str, Tensor], ids: Tensor, seen: Tensor | None = None
) -> Tensor:  # [B, S] -> [B, S, vocabulary]
    """The model as its authors' papers draw it; `seen` [B, S, S] is which keys each query sees, all before it when left out."""
    seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None] if seen is None else seen
    x = weights["embed"][ids]
    for layer in range(spec.layers):
        w = {name.removeprefix(f"layers.{layer}."): t for name, t in weights.items() if name.startswith(f"layers.{layer}.")}
        x = x + attention(spec, w, rms_norm(x, w["attn_norm"], spec.norm_eps), seen)
        h = rms_norm(x, w["mlp_norm"], spec.norm_eps)
        gate, up = h @ w["gate"].T, h @ w["up"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w["down"].T
    return rms_norm(x, weights["norm"], spec.norm_eps) @ weights["embed" if spec.tied else "head"].T


def attention(spec: ModelSpec, w: dict[str, Tensor], x: Tensor, seen: Tensor) -> Tensor:  # [B, S, H] -> [B, S, H]
    """Every query head with its KV head, the scores written out."""
    q, k, v = ((x @ w[n].T + w.get(f"{n}_bias", torch.zeros(()))).unflatten(-1, (-1, spec.head_dim)) for n in "qkv")  # [B, S, h, D]
    if spec.qk_norm:
        q, k = rms_norm(q, w["q_norm"], spec.norm_eps), rms_norm(k, w["k_norm"], spec.norm_eps)
    q, k = rotated(q, spec.rope), rotated(k, spec.rope)
    k, v = (t.repeat_interleave(spec.heads // spec.kv_heads, 2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(spec.head_dim)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~seen[:, None], -math.inf).softmax(-1), v)
    return out.flatten(2) @ w["o"].T


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, rope: Rope) -> Tensor:  # [B, S, h, D] -> the same
    """x as complex numbers (first half real, second half imaginary), each turned by its position times its frequency."""
    half = x.shape[-1] // 2
    frequencies = torch.tensor([scaled(rope.theta ** (-i / half), rope) for i in range(half)], dtype=x.dtype)
    angles = torch.arange(x.shape[1])[:, None, None] * frequencies
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


def scaled(frequency: float, rope: Rope) -> float:
    """Llama 3's scaling, case by case as Meta's reference code has it."""
    wavelength = 2 * math.pi / frequency
    if rope.factor == 1 or wavelength < rope.original_max_seq / rope.high_freq_factor:
        return frequency
    if wavelength > rope.original_max_seq / rope.low_freq_factor:
        return frequency / rope.factor
    smooth = (rope.original_max_seq / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - smooth) * frequency / rope.factor + smooth * frequency


def mean_loss(spec: ModelSpec, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    ids, targets = batch
    return F.cross_entropy(logits(spec, weights, ids).flatten(0, 1), targets.flatten())


def train(
    spec: ModelSpec, weights: dict[str, Tensor], batches: Sequence[Batch], rates: Sequence[float], section: OptimizerSection
) -> tuple[list[float], list[float]]:
    """One AdamW step per batch and rate, in place; returns losses and gradient norms."""
    for w in weights.values():
        w.requires_grad_()
    matrices, vectors = ([w for w in weights.values() if (w.ndim == 2) is wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": section.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(section.beta1, section.beta2), eps=section.eps)
    losses, norms = [], []
    for batch, rate in zip(batches, rates, strict=True):
        adamw.zero_grad()
        loss = mean_loss(spec, weights, batch)
        loss.backward()
        norm = torch.cat([w.grad.flatten() for w in weights.values()]).norm().item()
        for group in adamw.param_groups:
            group["lr"] = rate
        for w in weights.values():
            w.grad *= min(1.0, section.clip / norm)
        adamw.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms
