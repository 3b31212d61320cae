"""Paged attention on CUDA by flashinfer, behind the same ops as on a CPU. Importing this needs flashinfer (the extra `cuda`).

    plan(step)     once per step: where each sequence's pages lie, for all layers at once
    op.twin(step)  once per layer: queries of [tokens, (h + 2 k) D] over the layer's pages

It takes caches of bf16 and fp16: fp32, formats with scales, and heads that are cut unevenly within a group, are left to
torch (`serves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

from rayplane.kernels.op import Op
from rayplane.kernels.paged import Attend, Heads, LayerCache
from rayplane.kernels.records import Step

Tensor = torch.Tensor
WORKSPACE_BYTES = 128 << 20


def with_flash(ops: Sequence[Op]) -> tuple[list[Op], FlashPlan | None]:
    """The ops with flashinfer's attention, and its plan; as they are where it has no kernel for them."""
    layers = [op for op in ops if isinstance(op, Attend)]
    if not layers or not serves(layers[0].heads, layers[0].cache):
        return list(ops), None
    plan = FlashPlan(layers[0])
    return [FlashAttend(plan, op) if isinstance(op, Attend) else op for op in ops], plan


def serves(heads: Heads, cache: LayerCache) -> bool:
    """Whether flashinfer has a kernel for these heads and this cache."""
    even = heads.kv > 0 and all(end - start == heads.group for start, end in zip(heads.served, heads.served[1:], strict=False))
    return even and cache.key_scales is None and cache.keys.dtype in (torch.bfloat16, torch.float16)


class FlashPlan:
    """What all layers of a chunk share in a step."""

    def __init__(self, op: Attend):
        """`op` is one layer's attention."""
        self._op, device = op, op.qkv.device
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        self._workspace, self._device = workspace, device
        self._graphed: dict[int, BatchDecodeWithPagedKVCacheWrapper] = {}
        self._most_pages = op.cache.keys.shape[0]
        self._now: BatchDecodeWithPagedKVCacheWrapper | BatchPrefillWithPagedKVCacheWrapper = self._prefill

    def plan(self, step: Step, graphed: bool = False) -> None:
        """Ready the kernels for this step; `graphed`: one token of each sequence, in buffers that do not move."""
        block, heads = self._op.cache.block, self._op.heads
        lengths = step.lengths.cpu()
        pages = (lengths + block - 1) // block
        inside = torch.arange(step.tables.shape[1])[None] < pages[:, None]
        indices = step.tables[inside.to(self._device)].int()
        indptr = torch.cat((torch.zeros(1, dtype=torch.int32), pages.cumsum(0).int()))
        last = ((lengths - 1) % block + 1).int()
        window = self._op.window - 1 if self._op.window else -1
        dtype = self._op.qkv.dtype
        if graphed:
            wrapper = self._now = self._decode(len(lengths))
            wrapper.plan(
                indptr, indices, last, heads.count, heads.kv, heads.dim, block,
                window_left=window, q_data_type=dtype, kv_data_type=self._op.cache.keys.dtype, sm_scale=self._op.scale,
            )  # fmt: skip
            return
        self._now = self._prefill
        self._prefill.plan(
            step.starts.cpu(), indptr, indices, last, heads.count, heads.kv, heads.dim, block, causal=True,
            window_left=window, q_data_type=dtype, kv_data_type=self._op.cache.keys.dtype, sm_scale=self._op.scale,
        )  # fmt: skip

    def run(self, q: Tensor, cache: LayerCache) -> Tensor:  # [T, h, D] -> [T, h, D]
        """One layer's attention."""
        out: Tensor = self._now.run(q, (cache.keys.squeeze(2), cache.values.squeeze(-1)))
        return out

    def _decode(self, sequences: int) -> BatchDecodeWithPagedKVCacheWrapper:
        """The wrapper of a batch size; its buffers are part of a captured graph."""
        if sequences not in self._graphed:
            self._graphed[sequences] = BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, "HND", use_cuda_graph=True, use_tensor_cores=True,
                paged_kv_indptr_buffer=torch.empty(sequences + 1, dtype=torch.int32, device=self._device),
                paged_kv_indices_buffer=torch.empty(self._most_pages, dtype=torch.int32, device=self._device),
                paged_kv_last_page_len_buffer=torch.empty(sequences, dtype=torch.int32, device=self._device),
            )  # fmt: skip
        return self._graphed[sequences]


@dataclass(frozen=True, slots=True)
class FlashAttend:
    """Attend by flashinfer."""

    plan: FlashPlan
    attend: Attend

    def record(self) -> None:
        return None

    def twin(self, step: Step) -> None:
        op, count = self.attend, step.tokens.shape[0]
        q = op.qkv[:count].unflatten(-1, (-1, op.heads.dim))[:, : op.heads.count]
        op.out[:count] = self.plan.run(q.contiguous(), op.cache).flatten(1)
