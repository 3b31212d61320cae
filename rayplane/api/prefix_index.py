"""Which prefixes a replica should have in its cache, judging by what it was sent.

tokens  [a b c d | e f g h | i j]      blocks of 4; the rest is no block
chain    h1 = hash(salt, abcd)   h2 = hash(h1, efgh)        a block's hash stands for all that is before it, too
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_BLOCKS = 4096
"""Of a text: what is beyond is taken for new, so that a very long one does not hold up the others."""


def chain(tokens: Sequence[int], block: int, salt: str = "") -> tuple[int, ...]:
    """Hash of each full block, up to MAX_BLOCKS. Python's own hash: a collision costs a worse guess, nothing else."""
    out, before = [], hash(salt)
    for start in range(0, min(len(tokens), MAX_BLOCKS * block) - block + 1, block):
        before = hash((before, tuple(tokens[start : start + block])))
        out.append(before)
    return tuple(out)


class PrefixIndex:
    """The blocks last sent to a replica, as many as its cache holds."""

    def __init__(self, max_blocks: int):
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, hashes: Sequence[int]) -> int:
        """Blocks at the beginning that are there."""
        return next((n for n, block in enumerate(hashes) if block not in self._blocks), len(hashes))

    def add(self, hashes: Sequence[int]) -> None:
        """These are used now. A text's first blocks count as used after its last ones, since the last ones are dropped first."""
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
