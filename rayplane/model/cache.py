"""The KV cache of one rank: for each of its layers blocks of keys and values, as many as the memory given holds.

block_bytes = layers * 2 * k * block * (D * element + scale)        2 for keys and values, k KV heads on this rank
element 4, 2, 1, 1 for fp32, bf16, int8, fp8                        scale 4 for int8 and fp8, else 0
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from rayplane.errors import Problem, SpecError
from rayplane.kernels.paged import TOPS, Heads, LayerCache
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Dim

Tensor = torch.Tensor
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
SPARE = 64
"""Elements behind the last block: a vector that begins in it may end there."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """How keys and values are kept."""

    dtype: torch.dtype
    block: int
    """Tokens of a block."""

    def block_bytes(self, heads: Heads, layers: int) -> int:
        """Bytes of one block over the layers of a rank."""
        element = torch.empty((), dtype=self.dtype).element_size()
        pair = pair_of(self.dtype)
        keys = -(-heads.dim // pair) * pair * self.block
        values = -(-self.block // pair) * pair * heads.dim
        scales = 2 * 4 * self.block if self.dtype in TOPS else 0
        return layers * heads.kv * ((keys + values) * element + scales)


def cache_spec(dtype: str, block: int, model: torch.dtype) -> CacheSpec:
    """What a job's kv.dtype means for a model whose activations are of `model`; auto is the same."""
    if dtype != "auto" and dtype not in DTYPES:
        raise SpecError(Problem(f"{dtype!r} is none of auto, {', '.join(DTYPES)}", "serve.kv.dtype"))
    return CacheSpec(model if dtype == "auto" else DTYPES[dtype], block)


def heads_of(spec: ModelSpec, tp: int, rank: int) -> Heads:
    """The heads of a tp rank: which of its query heads each of its KV heads serves."""
    kv = Dim("kv_heads", spec.kv_heads, spec.head_dim, group=spec.group)
    first, count = Dim("heads", spec.heads, spec.head_dim).span(tp, rank)
    first_kv, num_kv = kv.span(tp, rank)
    ends = [min((first_kv + i + 1) * spec.group, first + count) - first for i in range(num_kv)]
    return Heads((0, *ends), spec.head_dim)


def pair_of(dtype: torch.dtype) -> int:
    """Elements that lie together on a CPU (rayplane.kernels.paged)."""
    return 1 if dtype == torch.float32 else 2


def make_cache(spec: CacheSpec, heads: Heads, layers: int, blocks: int, device: torch.device | str = "cpu") -> list[LayerCache]:
    """Empty blocks for each layer. What was never written is finite, for it is multiplied by 0."""
    pair, out = pair_of(spec.dtype), []
    of_keys, of_values = (heads.dim, 1) if torch.device(device).type == "cuda" else (pair, pair)
    keys = (blocks, heads.kv, -(-heads.dim // of_keys), spec.block, of_keys)
    values = (blocks, heads.kv, -(-spec.block // of_values), heads.dim, of_values)
    scales = (blocks, heads.kv, spec.block) if spec.dtype in TOPS else None
    for _ in range(layers):
        key_scales, value_scales = (None if scales is None else torch.ones(scales, device=device) for _ in range(2))
        out.append(
            LayerCache(_zeros(keys, spec.dtype, device), _zeros(values, spec.dtype, device), key_scales, value_scales, spec.block)
        )
    return out


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    size = torch.Size(shape).numel()
    if torch.device(device).type != "cpu":
        return torch.zeros(size + SPARE, dtype=dtype, device=device)[:size].view(shape)
    # Pages that the system clears when they are first used: a cache takes no more memory than was ever in it.
    pages = mmap.mmap(-1, (size + SPARE) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype)[:size].view(shape)
