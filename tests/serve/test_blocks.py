"""No block is lost, none is used twice, and the cache holds what a simple model of it holds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayplane.serve.blocks import BlockPool, extend_hashes, root_hash

NUM_BLOCKS = 8
SIZE = 2
ROOT = root_hash("")
TEXT = st.lists(st.integers(0, 1), min_size=SIZE, max_size=4 * SIZE)


def hashes_of(tokens):
    hashes = []
    extend_hashes(hashes, ROOT, tokens, SIZE)
    return hashes


class PoolMachine(RuleBasedStateMachine):
    """Sequences that come, find a prefix, fill blocks, are forked and go; beside the pool a list of what is in it."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: list[list[int]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        """Block → the prefix that it ends, of those that can be found."""
        self.unheld: list[int] = []
        """Of those, the ones without a holder, the oldest first."""

    @rule(tokens=TEXT)
    def serve(self, tokens):
        hashes = hashes_of(tokens)
        found = self.pool.find(hashes)
        prefixes = [tuple(tokens[: end * SIZE]) for end in range(1, len(hashes) + 1)]
        known = {prefix: block for block, prefix in self.content.items()}
        expected = []
        for prefix in prefixes:
            if prefix not in known:
                break
            expected.append(known[prefix])
        assert found == expected
        fresh = len(hashes) - len(found)
        if self.pool.num_free - self.pool.num_unheld(found) < fresh:
            return
        self.pool.hold(found)
        self.unheld = [b for b in self.unheld if b not in found]
        taken = self.take(fresh)
        for block, digest, prefix in zip(taken, hashes[len(found) :], prefixes[len(found) :], strict=True):
            self.pool.register(block, digest)
            if prefix not in known:
                self.content[block] = prefix
        self.held.append(found + taken)

    @precondition(lambda self: self.pool.num_free)
    @rule(data=st.data())
    def decode(self, data):
        """Blocks that are never full."""
        self.held.append(self.take(data.draw(st.integers(1, self.pool.num_free))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data):
        blocks = data.draw(st.sampled_from(self.held))
        self.pool.hold(blocks)
        self.held.append(list(blocks))
        assert all(self.pool.is_shared(block) for block in blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data):
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(blocks)
        for block in reversed(blocks):
            if block in self.content and self.holders(block) == 0:
                self.unheld.append(block)

    def take(self, count):
        blank = NUM_BLOCKS - len({b for blocks in self.held for b in blocks} | set(self.content))
        evicted = [self.unheld.pop(0) for _ in range(max(0, count - blank))]
        for block in evicted:
            del self.content[block]
        taken = self.pool.take(count)
        assert len(set(taken)) == count and not any(self.holders(b) for b in taken)
        assert set(evicted) <= set(taken) and not set(taken) & set(self.content)
        return taken

    def holders(self, block):
        return sum(block in blocks for blocks in self.held)

    @invariant()
    def what_is_not_held_is_free(self):
        held = {block for blocks in self.held for block in blocks}
        assert self.pool.num_free == NUM_BLOCKS - len(held)
        assert self.pool.usage == pytest.approx(len(held) / NUM_BLOCKS)
        assert all(self.pool.is_shared(block) == (self.holders(block) > 1) for block in held)

    @invariant()
    def every_known_prefix_is_found(self):
        for prefix in self.content.values():
            found = self.pool.find(hashes_of(prefix))
            assert [self.content[b] for b in found] == [prefix[: (i + 1) * SIZE] for i in range(len(found))]


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestBlockPool = PoolMachine.TestCase


def test_the_oldest_prefix_makes_room_and_its_end_goes_first():
    pool, hashes = BlockPool(4), hashes_of([0, 0, 1, 1])
    other = hashes_of([1, 1])
    for digests in (hashes, other):
        blocks = pool.take(len(digests))
        for block, digest in zip(blocks, digests, strict=True):
            pool.register(block, digest)
        pool.release(blocks)
    pool.take(1)
    assert (len(pool.find(hashes)), len(pool.find(other))) == (2, 1)
    pool.take(1)
    assert (len(pool.find(hashes)), len(pool.find(other))) == (1, 1)
    pool.take(1)
    assert (len(pool.find(hashes)), len(pool.find(other)), pool.counts.evicted) == (0, 1, 2)


def test_hashes_tell_texts_adapters_and_places_apart():
    tokens = [5, 6, 7, 8, 5, 6]
    hashes = hashes_of(tokens)
    assert len(set(hashes)) == 3
    assert hashes_of(tokens[:4]) == hashes_of([*tokens[:4], 9]) == hashes[:2]
    salted = []
    extend_hashes(salted, root_hash("adapter"), tokens, SIZE)
    assert not set(salted) & set(hashes)
    grown = hashes_of(tokens[:3])
    extend_hashes(grown, ROOT, tokens, SIZE)
    assert grown == hashes


@pytest.mark.parametrize(
    "misuse", [lambda p: p.take(3), lambda p: p.release([0, 0]), lambda p: p.hold([1]), lambda p: p.register(1, b"x")]
)
def test_misuse_is_caught(misuse):
    pool = BlockPool(2)
    pool.release(pool.take(1))
    with pytest.raises(AssertionError):
        misuse(pool)
