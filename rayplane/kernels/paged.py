"""Attention over keys and values in blocks: a step's are rotated and put into their slots, then each token meets those before it.

                                          fp32    bf16, int8, fp8
    keys    [blocks, k, D / P, block, P]   P = 1   P = 2
    values  [blocks, k, block / P, D, P]                            D head dim   k KV heads on this rank   h query heads

On CUDA P is D for keys and 1 for values: both are [blocks, k, block, D] there.

int8 and fp8 are stored divided by a scale per head and slot, the largest magnitude over what the format holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rayplane.kernels.records import FORMATS, Kind, OpRecord, Step, record

Tensor = torch.Tensor
TOPS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of formats that need scales."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a rank: query heads [served[i], served[i + 1]) meet KV head i."""

    served: tuple[int, ...]
    dim: int

    @property
    def count(self) -> int:
        """Query heads."""
        return self.served[-1]

    @property
    def kv(self) -> int:
        """KV heads."""
        return len(self.served) - 1

    @property
    def group(self) -> int:
        """Most query heads of one KV head."""
        return max((b - a for a, b in zip(self.served, self.served[1:], strict=False)), default=0)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer on one rank, and their scales [blocks, k, block] where the format needs them."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None
    block: int

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k and v, [T, k, D], into slots [T]."""
        at, offset = slots // self.block, slots % self.block
        k, v = self._stored(k, self.key_scales, at, offset), self._stored(v, self.value_scales, at, offset)
        pair = self.keys.shape[-1]
        _bytes(self.keys)[at, :, :, offset] = _bytes(F.pad(k, (0, -k.shape[-1] % pair))).unflatten(-1, (-1, pair))
        pair = self.values.shape[-1]
        _bytes(self.values)[at, :, offset // pair, :, offset % pair] = _bytes(v)

    def read(self, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence, fp32 [k, length, D]."""
        blocks = table[: -(-length // self.block)].long()
        k = _taken(self.keys, blocks).permute(0, 1, 3, 2, 4).flatten(3)[..., : self.values.shape[3]]
        v = _taken(self.values, blocks).permute(0, 1, 2, 4, 3).flatten(2, 3)[:, :, : self.block]
        out = []
        for x, scales in ((k, self.key_scales), (v, self.value_scales)):
            x = x if scales is None else x * scales[blocks][..., None]
            out.append(x.transpose(0, 1).flatten(1, 2)[:, :length])
        return out[0], out[1]

    def _stored(self, x: Tensor, scales: Tensor | None, at: Tensor, offset: Tensor) -> Tensor:
        """x as the cache holds it; puts its scales into their places."""
        if scales is None:
            return x.to(self.keys.dtype)
        scale = x.float().abs().amax(-1) / TOPS[self.keys.dtype]
        scale = torch.where(scale > 0, scale, 1.0)
        scales[at, :, offset] = scale
        x = x.float() / scale[..., None]
        return (x.round() if self.keys.dtype == torch.int8 else x).to(self.keys.dtype)


def _bytes(x: Tensor) -> Tensor:
    """torch does not index fp8."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _taken(x: Tensor, blocks: Tensor) -> Tensor:
    return _bytes(x)[blocks].view(x.dtype).float()


@dataclass(frozen=True, slots=True)
class Rotate:
    """Of qkv [tokens, (h + 2 k) D]: queries are normed and rotated in place, keys so into the cache, values too."""

    qkv: Tensor
    heads: Heads
    cache: LayerCache
    angles: Tensor | None
    """fp32 [positions, cos | sin]; None where positions are learned."""
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float

    def record(self) -> OpRecord:
        cache = self.cache
        tensors = (self.qkv, cache.keys, cache.values, cache.key_scales, cache.value_scales, self.angles, self.q_norm, self.k_norm)
        kind = FORMATS[cache.keys.dtype]
        sizes = (self.qkv.stride(0), self.heads.count, self.heads.kv, self.heads.dim, cache.block, kind)
        return record(Kind.ROTATE, self.qkv.dtype, tensors, sizes, (self.eps,))

    def twin(self, step: Step) -> None:
        num_tokens, h, k = step.tokens.shape[0], self.heads.count, self.heads.kv
        q, key, value = self.qkv[:num_tokens].unflatten(-1, (-1, self.heads.dim)).split((h, k, k), 1)
        q.copy_(self._turned(q, self.q_norm, step.positions))
        self.cache.write(step.slots, self._turned(key, self.k_norm, step.positions), value)

    def _turned(self, x: Tensor, weight: Tensor | None, positions: Tensor) -> Tensor:  # [T, heads, D]
        x = x.float()
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight.float()
        if self.angles is None:
            return x
        cos, sin = self.angles[positions][:, None].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@dataclass(frozen=True, slots=True)
class Attend:
    """Of qkv [tokens, (h + 2 k) D] with rotated queries: out [tokens, h D], each token of the keys up to itself in its sequence."""

    qkv: Tensor
    out: Tensor
    heads: Heads
    served: Tensor
    """int32 [k + 1]: `heads.served` for C++."""
    cache: LayerCache
    window: int
    scale: float
    lse: Tensor | None = None
    """fp32 [tokens, h], to be filled with the log of the sum of the exponentials: by it, parts over several ranks are merged."""

    def record(self) -> OpRecord:
        cache, heads = self.cache, self.heads
        tensors = (self.qkv, cache.keys, cache.values, cache.key_scales, cache.value_scales, self.out, self.served, self.lse)
        kind = FORMATS[cache.keys.dtype]
        wide = self.out.dtype == torch.float32
        sizes = (self.qkv.stride(0), self.out.stride(0), heads.kv, heads.dim, cache.block, self.window, heads.group, kind, wide)
        return record(Kind.ATTEND, self.qkv.dtype, tensors, sizes, (self.scale,))

    def twin(self, step: Step) -> None:
        starts = step.starts.tolist()
        for n, length in enumerate(step.lengths.tolist()):
            first, end = starts[n], starts[n + 1]
            k, v = self.cache.read(step.tables[n], length)
            k, v = (torch.repeat_interleave(x, self.served.diff().to(x.device), 0) for x in (k, v))
            q = self.qkv[first:end].unflatten(-1, (-1, self.heads.dim))[:, : self.heads.count].transpose(0, 1).float()
            scores = (q @ k.transpose(1, 2)) * self.scale  # [h, new tokens, length]
            low, high = self._seen(step, first, end, length)
            keys = torch.arange(length, device=k.device)
            scores = scores.masked_fill_((keys < low[:, None]) | (keys >= high[:, None]), -torch.inf)
            top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0) if length else scores.new_zeros(*scores.shape[:2], 1)
            scores = (scores - top).exp_()
            total = scores.sum(-1, keepdim=True)
            self.out[first:end] = (scores @ v / total.clamp(min=1e-30)).transpose(0, 1).flatten(1).to(self.out.dtype)
            if self.lse is not None:
                self.lse[first:end] = (total.log() + top).squeeze(-1).t()

    def _seen(self, step: Step, first: int, end: int, length: int) -> tuple[Tensor, Tensor]:
        """Of a sequence's new tokens, the first key that each sees, and the one behind the last."""
        if step.stripes is not None:
            return step.stripes.keys[0, first:end], step.stripes.keys[1, first:end]
        high = torch.arange(length - (end - first), length, device=self.qkv.device) + 1
        return high - (self.window or length), high
