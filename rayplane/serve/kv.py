"""The KV cache of a replica as its scheduler sees it: which blocks each sequence has, and their table.

admit    all of its known tokens get blocks at once: those found in the prefix cache, or shared with the sequence that it is a fork of,
         and fresh ones; so a prompt that was admitted never waits for memory
grow     blocks for the next tokens; False when there are none
release  everything goes back; what is full stays findable until somebody needs the room

tables   [max_sequences, blocks per sequence], a row per sequence that holds blocks; batches copy their rows out of it
copies   {dst: src} of this step: blocks to be copied, all at once, before anything is written
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rayplane.serve.blocks import BlockPool, extend_hashes, root_hash
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.request import Sequence


class KvCache:
    """Blocks of sequences. It is told of sequences one at a time and decides nothing."""

    def __init__(self, limits: SchedulerLimits):
        self.pool = BlockPool(limits.num_blocks)
        self.tables: npt.NDArray[np.int32] = np.zeros((limits.max_sequences, limits.blocks_per_sequence), np.int32)
        self._copies: dict[int, int] = {}
        self._block_size = limits.block_size
        self._prefix_cache = limits.prefix_cache
        self._rows = list(range(limits.max_sequences - 1, -1, -1))

    @property
    def has_row(self) -> bool:
        """One more sequence may hold blocks."""
        return bool(self._rows)

    def admit(self, sequence: Sequence, parent: Sequence | None, reserve: int) -> bool:
        """Blocks for all its tokens, where `reserve` more stay free. At least its last token is left to compute."""
        assert sequence.row < 0 and not sequence.blocks and sequence.computed == 0
        length, size = len(sequence.tokens), self._block_size
        num_shared = length - 1 if parent is not None else 0
        if parent is not None:
            found = parent.blocks[: -(-num_shared // size)]
        else:
            found = self._find(sequence)
            num_shared = len(found) * size
        copied = num_shared % size != 0
        fresh = -(-length // size) - len(found)
        if self.pool.num_free - self.pool.num_unheld(found) - fresh - copied < reserve:
            return False
        self.pool.counts.asked += (length - 1) // size
        self.pool.counts.hits += num_shared // size
        self.pool.hold(found)
        sequence.row = self._rows.pop()
        self._append(sequence, found)
        self._append(sequence, self.pool.take(fresh))
        sequence.computed, sequence.registered = num_shared, num_shared // size
        if copied:
            self._own(sequence, num_shared // size)
        return True

    def grow(self, sequence: Sequence, length: int) -> bool:
        """Blocks for `length` tokens; False, and nothing changed, where too few are free."""
        missing = -(-length // self._block_size) - len(sequence.blocks)
        if missing > 0:
            if missing > self.pool.num_free:
                return False
            self._append(sequence, self.pool.take(missing))
        return True

    def room(self, sequence: Sequence) -> int:
        """Tokens that it could have at most now, with all that is free."""
        return (len(sequence.blocks) + self.pool.num_free) * self._block_size

    def register(self, sequence: Sequence) -> None:
        """What is full of computed tokens, and certain, can be found from now on. Drafts are not certain."""
        if not self._prefix_cache:
            return
        full = min(sequence.computed, len(sequence.tokens)) // self._block_size
        if full > sequence.registered:
            self._hash(sequence)
            for index in range(sequence.registered, full):
                self.pool.register(sequence.blocks[index], sequence.hashes[index])
            sequence.registered = full

    def release(self, sequence: Sequence) -> None:
        """All its blocks and its row."""
        if sequence.row >= 0:
            self.pool.release(sequence.blocks)
            self._rows.append(sequence.row)
            sequence.blocks, sequence.row, sequence.registered = [], -1, 0

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of the blocks to copy before this step; the next step begins with none."""
        copies = [(src, dst) for dst, src in self._copies.items()]
        self._copies.clear()
        return copies

    def _find(self, sequence: Sequence) -> list[int]:
        if not self._prefix_cache:
            return []
        self._hash(sequence)
        return self.pool.find(sequence.hashes[: (len(sequence.tokens) - 1) // self._block_size])

    def _hash(self, sequence: Sequence) -> None:
        root = b"" if sequence.hashes else root_hash(sequence.request.salt)
        extend_hashes(sequence.hashes, root, sequence.tokens, self._block_size)

    def _own(self, sequence: Sequence, index: int) -> None:
        """Replace a shared block, about to be written, by a copy of it."""
        shared = sequence.blocks[index]
        if self.pool.is_shared(shared):
            (own,) = self.pool.take(1)
            self.pool.release([shared])
            assert shared not in self._copies, "what is shared was computed in an earlier step"
            self._copies[own] = shared
            self.pool.counts.copied += 1
            sequence.blocks[index] = self.tables[sequence.row, index] = own

    def _append(self, sequence: Sequence, blocks: list[int]) -> None:
        start = len(sequence.blocks)
        sequence.blocks.extend(blocks)
        if len(blocks) == 1:
            self.tables[sequence.row, start] = blocks[0]
        elif blocks:
            self.tables[sequence.row, start : start + len(blocks)] = blocks
