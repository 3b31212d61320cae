"""What one step computes: some tokens of some sequences, as the scheduler chose them and as numbers that travel.

Batch    sequences  begins  nums  drafts                sequence 0: its token 4; sequence 1: its tokens 0, 1, 2
         s0         4       1     []
         s1         0       3     []                    blocks of 4 tokens: s0 has [7, 2], s1 has [5]
Step     tokens [a, x, y, z]  positions [4, 0, 1, 2]  slots [8, 20, 21, 22]  starts [0, 1, 4]  lengths [5, 3]
         tables [[7, 2], [5, ·]]  rows [0, 3]           as in model/paged.py

On the way it is one flat buffer, of the same layout on every rank (packing.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rayplane.serve.request import Sequence

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Batch:
    """The scheduler's choice for one step, a column per sequence: decoding ones first, then those that still read their prompts."""

    number: int
    """Counts steps; batches return in this order."""
    sequences: list[Sequence] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    """Position of each sequence's first token of this step."""
    nums: list[int] = field(default_factory=list)
    """Tokens of each sequence, drafts included."""
    drafts: list[list[int]] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    """Whether it closes its gap, so that tokens are chosen for it."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) blocks."""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    """Those of sequences that read, or read again after they were preempted."""

    def add(self, sequence: Sequence, num: int, drafts: list[int], samples: bool) -> None:
        """`num` more tokens of a sequence, the last of them `drafts`."""
        self.sequences.append(sequence)
        self.begins.append(sequence.computed)
        self.nums.append(num)
        self.drafts.append(drafts)
        self.samples.append(samples)
        self.num_tokens += num

    @property
    def scheduled(self) -> dict[str, int]:
        """Tokens by request."""
        return {sequence.request.id: num for sequence, num in zip(self.sequences, self.nums, strict=True)}

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that tokens are chosen for, in the order of results."""
        return [sequence for sequence, samples in zip(self.sequences, self.samples, strict=True) if samples]


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """T tokens of N sequences; W blocks at most in a table; R rows of logits; C copies. The first seven are PagedStep's."""

    tokens: Int64  # [T]
    positions: Int64  # [T]
    slots: Int64  # [T]
    rows: Int64  # [R]
    ids: Int64  # [N], Sequence.number
    starts: Int32  # [N + 1]
    lengths: Int32  # [N]
    num_drafts: Int32  # [N], of a sequence without rows 0: one with rows has num_drafts + 1 of them
    tables: Int32  # [N, W]
    copies: Int32  # [C, 2], (source, destination): all read before any is written, and all before the step
    number: int = 0
    notes: bytes = b""
    """What else the ranks have to know of this step, such as how new sequences sample; the engine's to write and to read."""


class StepBuilder:
    """Turns batches into arrays. `tables` are the cache's, whose rows it copies."""

    def __init__(self, tables: Int32, block_size: int):
        self._tables = tables
        self._block_size = block_size
        self._count: Int64 = np.arange(max(64, len(tables)), dtype=np.int64)

    def build(self, batch: Batch, notes: bytes = b"") -> StepArrays:
        """The arrays of a batch; call it before the scheduler is called again."""
        size, owner_rows = self._block_size, [sequence.row for sequence in batch.sequences]
        num_sequences, num_tokens = len(batch.nums), batch.num_tokens
        begins, nums = np.array(batch.begins, np.int64), np.array(batch.nums, np.int64)
        lengths, starts = begins + nums, np.zeros(num_sequences + 1, np.int64)
        np.cumsum(nums, out=starts[1:])
        tables = self._tables[owner_rows, : -(-int(lengths.max()) // size)]
        if num_tokens == num_sequences:
            owners, positions = self._up_to(num_sequences), begins
        else:
            owners = np.repeat(self._up_to(num_sequences), nums)
            positions = self._up_to(num_tokens) + (begins - starts[:-1])[owners]
        in_table = positions // size
        return StepArrays(
            tokens=np.array(_tokens(batch), np.int64),
            positions=positions,
            slots=tables[owners, in_table] * np.int64(size) + (positions - in_table * size),
            rows=_rows(batch, starts),
            ids=np.array([sequence.number for sequence in batch.sequences], np.int64),
            starts=starts.astype(np.int32),
            lengths=lengths.astype(np.int32),
            num_drafts=np.array([len(drafts) for drafts in batch.drafts], np.int32),
            tables=tables,
            copies=np.array(batch.copies, np.int32).reshape(-1, 2),
            number=batch.number,
            notes=notes,
        )

    def _up_to(self, count: int) -> Int64:
        """0, 1, ..., count - 1."""
        if count > len(self._count):
            self._count = np.arange(2 * count, dtype=np.int64)
        return self._count[:count]


def _tokens(batch: Batch) -> list[int]:
    tokens: list[int] = []
    for sequence, begin, num, drafts in zip(batch.sequences, batch.begins, batch.nums, batch.drafts, strict=True):
        if num == 1:
            tokens.append(sequence.tokens[begin])
        else:
            tokens += sequence.tokens[begin : begin + num - len(drafts)]
            tokens += drafts
    return tokens


def _rows(batch: Batch, starts: Int64) -> Int64:
    if batch.num_tokens == len(batch.nums) and all(batch.samples):
        return starts[:-1]
    rows: list[int] = []
    for end, drafts, samples in zip(starts[1:].tolist(), batch.drafts, batch.samples, strict=True):
        if samples:
            rows.extend(range(end - 1 - len(drafts), end))
    return np.array(rows, np.int64)
