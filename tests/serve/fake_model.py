"""A model without weights whose next token depends on every key and value that attention would read, and ranks that run it.

state of a token   a hash of (sum of the states before it, read from the cache through the block table, itself, its position)
next token         the state of the last one, modulo VOCAB

So a block that was shared wrongly, copied late, reused early or never written changes the text.
"""

import random
from collections import deque

import numpy as np

from rayplane.serve.outputs import Sampled
from rayplane.serve.packing import pack, unpack

VOCAB = 11
MASK = (1 << 61) - 1


def state(before, token, position):
    return (before * 6364136223846793005 + token * 1442695040888963407 + position * 7046029254386353131 + 12345) & MASK


def continuation(prompt, count):
    """The tokens that follow a prompt, computed without any cache."""
    tokens, total, out = list(prompt), 0, []
    for position in range(len(prompt) + count):
        if position >= len(tokens):
            tokens.append(out[-1])
        last = state(total & MASK, tokens[position], position)
        total += last
        if position >= len(prompt) - 1:
            out.append((last >> 7) % VOCAB)
    return out[:count]


class FakeRanks:
    """Runs packed steps in order, each only when its result is asked for, as the last stage of a pipe would."""

    def __init__(self, limits, seed=0):
        self.cache = [0] * (limits.num_blocks * limits.block_size)
        self.block_size = limits.block_size
        self.steps = deque()
        self.random = random.Random(seed)

    def submit(self, step):
        self.steps.append(pack(step))

    def result(self):
        """The tokens of the oldest step."""
        step = unpack(self.steps.popleft())
        self._copy(step.copies)
        states = np.zeros(len(step.tokens), dtype=object)
        order = list(range(len(step.ids)))
        self.random.shuffle(order)
        for i in order:
            self._run(step, i, states)
        chosen = [(s >> 7) % VOCAB for s in states[step.rows]]
        return list(self._accepted(step, chosen))

    def _copy(self, copies):
        size = self.block_size
        read = [self.cache[src * size : (src + 1) * size] for src, _ in copies.tolist()]
        for (_, dst), content in zip(copies.tolist(), read, strict=True):
            self.cache[dst * size : (dst + 1) * size] = content

    def _run(self, step, i, states):
        start, end, table = int(step.starts[i]), int(step.starts[i + 1]), step.tables[i].tolist()
        for t in range(start, end):
            position = int(step.positions[t])
            assert position == step.lengths[i] - (end - t)
            before = sum(self.cache[table[p // self.block_size] * self.block_size + p % self.block_size] for p in range(position))
            states[t] = state(before & MASK, int(step.tokens[t]), position)
            self.cache[int(step.slots[t])] = states[t]

    def _accepted(self, step, chosen):
        """Drafts as far as they are right and one token more."""
        at = 0
        for i, end in enumerate(step.starts[1:].tolist()):
            if at == len(step.rows) or not step.starts[i] <= step.rows[at] < end:
                continue
            num = int(step.num_drafts[i]) + 1
            drafts = step.tokens[end - num + 1 : end].tolist()
            right = next((n for n, draft in enumerate(drafts) if draft != chosen[at + n]), len(drafts))
            yield Sampled(tuple(chosen[at : at + right + 1]))
            at += num
        assert at == len(step.rows)


def serve(scheduler, requests, ranks=None):
    """Runs all requests to their end, as many batches in flight as may be; {id: tokens}."""
    ranks = ranks or FakeRanks(scheduler.limits)
    for request in requests:
        scheduler.add(request)
    texts, batches = {r.id: [] for r in requests}, deque()
    for step in range(100_000):
        while (batch := scheduler.schedule(float(step))) is not None:
            ranks.submit(scheduler.arrays(batch))
            batches.append(batch)
        if not batches:
            break
        for output in scheduler.update(batches.popleft(), ranks.result()):
            texts[output.id] += output.tokens
    assert not scheduler.has_work
    return texts


def batches(scheduler, arrivals, limit=1000):
    """What each step takes, {id: tokens}, of requests that arrive before the steps they are listed under; one step at a time."""
    ranks, taken = FakeRanks(scheduler.limits), []
    for step in range(limit):
        for request in arrivals.get(step, ()):
            scheduler.add(request)
        batch = scheduler.schedule(float(step))
        if batch is None and step >= max(arrivals):
            break
        taken.append(batch.scheduled if batch else {})
        if batch:
            ranks.submit(scheduler.arrays(batch))
            scheduler.update(batch, ranks.result())
    return taken
