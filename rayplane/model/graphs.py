"""Decode steps on CUDA as captured graphs: one launch where there were hundreds, one graph per batch size of 1, 2, 4, 8, ….

    5 sequences ─▶ the graph of 8     3 of them stand in: one token each, in the cache's last block, which is theirs alone

A step is replayed when each of its sequences has one new token; all others run op by op. Without tp, whose sums are timed by events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from rayplane.model.paged import PagedStep

Tensor = torch.Tensor


class Planned(Protocol):
    """Attention that is readied once per step."""

    def plan(self, step: PagedStep, graphed: bool = False) -> None:
        """Before the step runs."""


class DecodeGraphs:
    """The graphs of one chunk."""

    def __init__(self, run: Callable[[PagedStep], None], plan: Planned, largest: int, width: int, blocks: int, block: int):
        """`run` is captured; steps have at most `largest` sequences of `width` blocks, out of `blocks` of `block` tokens."""
        self._run, self._plan, self._largest, self._width = run, plan, largest, width
        self._spare, self._block = blocks - 1, block
        self._graphs: dict[int, tuple[PagedStep, torch.cuda.CUDAGraph]] = {}

    def replay(self, step: PagedStep) -> bool:
        """Run the step if it is one for a graph; the results are where the ops leave them."""
        count = step.lengths.shape[0]
        size = 1 << max(0, count - 1).bit_length()
        alone = step.tokens.shape[0] == count == step.rows.shape[0]
        if not alone or not count or size > self._largest or step.tables.shape[1] > self._width:
            return False
        if size not in self._graphs:
            self._graphs[size] = self._captured(size, step.tokens.device)
        fixed, graph = self._graphs[size]
        self._fill(fixed, step)
        self._plan.plan(fixed, graphed=True)
        graph.replay()
        return True

    def _fill(self, fixed: PagedStep, step: PagedStep) -> None:
        """The step into the graph's own tensors; those of stand-ins are as they were made."""
        count, size = step.lengths.shape[0], fixed.lengths.shape[0]
        for mine, given in ((fixed.tokens, step.tokens), (fixed.positions, step.positions), (fixed.slots, step.slots)):
            mine[:count] = given
        fixed.lengths[:count] = step.lengths
        fixed.tables[:count, : step.tables.shape[1]] = step.tables
        for mine, value in (
            (fixed.positions, 0),
            (fixed.slots, self._spare * self._block),
            (fixed.lengths, 1),
            (fixed.tables, self._spare),
        ):
            mine[count:size] = value

    def _captured(self, size: int, device: torch.device) -> tuple[PagedStep, torch.cuda.CUDAGraph]:
        """A graph over stand-ins only, run once before so that kernels are there."""
        longs = torch.zeros(size, dtype=torch.int64, device=device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        tables = torch.full((size, self._width), self._spare, dtype=torch.int32, device=device)
        slots = torch.full_like(longs, self._spare * self._block)
        rows = torch.arange(size, device=device)
        fixed = PagedStep(longs, longs.clone(), slots, starts, torch.ones(size, dtype=torch.int32, device=device), tables, rows)
        self._plan.plan(fixed, graphed=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run(fixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run(fixed)
        return fixed, graph
