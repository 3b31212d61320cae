"""A step as one flat buffer, which goes from rank to rank beside the activations or lies in shared memory: no pickle, no copy to read.

header   int64 [9]: MAGIC, number, T, N, W, R, C, bytes of notes, bytes of all
int64    tokens [T]  positions [T]  slots [T]  rows [R]  ids [N]
int32    starts [N + 1]  lengths [N]  num_drafts [N]  tables [N, W]  copies [C, 2]
notes    bytes, then up to 7 more so that the whole is a multiple of 8 bytes
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rayplane.serve.batch import Int32, Int64, StepArrays

MAGIC = 0x5241_5953_5445_5031
HEADER = 9

Buffer = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def packed_bytes(step: StepArrays) -> int:
    """Size of a step's buffer."""
    long, short = _arrays(step)
    return _whole(8 * (HEADER + sum(a.size for a in long)) + 4 * sum(a.size for a in short) + len(step.notes))


def most_bytes(max_tokens: int, max_sequences: int, blocks_per_sequence: int, notes_bytes: int) -> int:
    """Size of a buffer that holds any step within these bounds."""
    # Each token and each copied block has one row and one pair of numbers at most.
    return _whole(8 * (HEADER + 4 * max_tokens + max_sequences) + 4 * (1 + max_sequences * (5 + blocks_per_sequence)) + notes_bytes)


def pack(step: StepArrays) -> bytearray:
    """The step in a buffer of its own."""
    buffer = bytearray(packed_bytes(step))
    pack_into(step, buffer)
    return buffer


def pack_into(step: StepArrays, buffer: bytearray | memoryview) -> int:
    """Write the step at the start of a longer buffer; its size in bytes."""
    size = packed_bytes(step)
    assert size <= len(buffer), f"a step of {size} bytes, a buffer of {len(buffer)}"
    long, short = _arrays(step)
    num_sequences, width = step.tables.shape
    header = (MAGIC, step.number, len(step.tokens), num_sequences, width, len(step.rows), len(step.copies), len(step.notes), size)
    num_long = HEADER + sum(a.size for a in long)
    num_short = sum(a.size for a in short)
    np.concatenate([np.array(header, np.int64), *long], out=np.frombuffer(buffer, np.int64, num_long))
    np.concatenate([a.reshape(-1) for a in short], out=np.frombuffer(buffer, np.int32, num_short, 8 * num_long))
    notes_at = 8 * num_long + 4 * num_short
    buffer[notes_at : notes_at + len(step.notes)] = step.notes
    return size


def unpack(buffer: Buffer) -> StepArrays:
    """The step at the start of a buffer, as views: they change when the buffer is written again."""
    header = np.frombuffer(buffer, np.int64, HEADER).tolist()
    magic, number, tokens, sequences, width, rows, copies, notes, size = header
    assert magic == MAGIC and size <= len(buffer), "this is no packed step"
    long = np.frombuffer(buffer, np.int64, 3 * tokens + rows + sequences, 8 * HEADER)
    short_at = 8 * (HEADER + len(long))
    short = np.frombuffer(buffer, np.int32, 1 + sequences * (3 + width) + 2 * copies, short_at)
    tables_at, copies_at = 3 * sequences + 1, 3 * sequences + 1 + sequences * width
    notes_at = short_at + 4 * len(short)
    return StepArrays(
        tokens=long[:tokens],
        positions=long[tokens : 2 * tokens],
        slots=long[2 * tokens : 3 * tokens],
        rows=long[3 * tokens : 3 * tokens + rows],
        ids=long[3 * tokens + rows :],
        starts=short[: sequences + 1],
        lengths=short[sequences + 1 : 2 * sequences + 1],
        num_drafts=short[2 * sequences + 1 : tables_at],
        tables=short[tables_at:copies_at].reshape(sequences, width),
        copies=short[copies_at:].reshape(-1, 2),
        number=number,
        notes=bytes(buffer[notes_at : notes_at + notes]),
    )


def _arrays(step: StepArrays) -> tuple[tuple[Int64, ...], tuple[Int32, ...]]:
    long = (step.tokens, step.positions, step.slots, step.rows, step.ids)
    return long, (step.starts, step.lengths, step.num_drafts, step.tables, step.copies)


def _whole(num_bytes: int) -> int:
    return -(-num_bytes // 8) * 8
