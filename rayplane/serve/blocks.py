"""The blocks of the KV cache: who holds which, and which hold a prefix that somebody may ask for again.

            take                         release, the last holder, never registered
  blank ───────────────▶ held ──────────────────────────────────────▶ blank
    ▲                     │ ▲  register: it is full, and known by its hash
    │ evict, the oldest   │ │ hold (a hit)
    └────── take ─── aged ◀─┘ release, the last holder

free = blank + aged. A held block has as many references as sequences that hold it; one with two is written by nobody (copy on write).
The hash of a full block covers its tokens and the hash of the block before it, from a root that names model and adapter:

  hash[i] = blake2b(hash[i - 1] + tokens of block i),  hash[-1] = blake2b(salt)
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DIGEST_BYTES = 16


def root_hash(salt: str) -> bytes:
    """What the hashes of a model's and adapter's prefixes begin with."""
    return hashlib.blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest()


def extend_hashes(hashes: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Add the hashes of those full blocks of `tokens` that are not in `hashes` yet."""
    for end in range((len(hashes) + 1) * block_size, len(tokens) + 1, block_size):
        before = hashes[-1] if hashes else root
        content = array("q", tokens[end - block_size : end]).tobytes()
        hashes.append(hashlib.blake2b(before + content, digest_size=DIGEST_BYTES).digest())


@dataclass(slots=True)
class CacheCounts:
    """Totals since the start, in blocks."""

    asked: int = 0
    """Full blocks of admitted sequences that might have been in the cache."""
    hits: int = 0
    evicted: int = 0
    copied: int = 0


class BlockPool:
    """`num_blocks` blocks, numbered from 0. It knows no sequences: callers keep what they hold."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.counts = CacheCounts()
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._aged: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._blank) + len(self._aged)

    @property
    def usage(self) -> float:
        """Share of blocks that are held."""
        return 1.0 - self.num_free / self.num_blocks

    def take(self, count: int) -> list[int]:
        """Blocks for new content, one reference each; the longest unused prefixes make room. The caller has looked at `num_free`."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        blocks = []
        for _ in range(count):
            block = self._blank.pop() if self._blank else self._evict()
            assert self._references[block] == 0
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix; none of them is held by that."""
        found = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_unheld(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds: holding them takes from what is free."""
        return sum(self._references[block] == 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """One more reference to each."""
        for block in blocks:
            if self._references[block] == 0:
                assert self._hash_of[block] is not None, "a blank block has nothing to share"
                del self._aged[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each; the end of a prefix is evicted before its beginning."""
        for block in reversed(blocks):
            left = self._references[block] - 1
            assert left >= 0, f"block {block} is released twice"
            self._references[block] = left
            if left == 0:
                if self._hash_of[block] is None:
                    self._blank.append(block)
                else:
                    self._aged[block] = None

    def register(self, block: int, digest: bytes) -> None:
        """The held block is full and its content is known; a later twin of a known block stays unknown."""
        assert self._references[block] > 0 and self._hash_of[block] is None
        if digest not in self._block_of:
            self._hash_of[block] = digest
            self._block_of[digest] = block

    def is_shared(self, block: int) -> bool:
        """More than one holder: it must be copied before it is written."""
        return self._references[block] > 1

    def _evict(self) -> int:
        block, _ = self._aged.popitem(last=False)
        digest = self._hash_of[block]
        assert digest is not None
        self._hash_of[block] = None
        del self._block_of[digest]
        self.counts.evicted += 1
        return block
