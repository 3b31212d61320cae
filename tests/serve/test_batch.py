"""A step as numbers: what the model reads, and the same after a journey as bytes."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.serve.batch import Batch, StepBuilder
from rayplane.serve.packing import most_bytes, pack, pack_into, packed_bytes, unpack
from rayplane.serve.request import Request, Sequence

SIZE = 4


def sequence(number, tokens, computed, blocks, tables):
    tables[number, : len(blocks)] = blocks
    made = Sequence(Request(str(number), (1,)), number + 10, (0.0, number), 99, frozenset(), list(tokens))
    made.computed, made.blocks, made.row = computed, blocks, number
    return made


@pytest.fixture
def example():
    """The step of the modules' docstrings, of tokens a = 50, x = 61, y = 62, z = 63."""
    tables = np.full((3, 5), 99, np.int32)
    batch = Batch(7)
    batch.add(sequence(0, [1, 2, 3, 4, 50], 4, [7, 2], tables), 1, [], True)
    batch.add(sequence(1, [61, 62, 63, 64], 0, [5], tables), 3, [], True)
    batch.copies = [(3, 5)]
    return StepBuilder(tables, SIZE).build(batch, b"new: 11")


def test_arrays_are_those_of_the_docstring(example):
    assert example.tokens.tolist() == [50, 61, 62, 63]
    assert example.positions.tolist() == [4, 0, 1, 2]
    assert example.slots.tolist() == [2 * 4 + 0, 20, 21, 22]
    assert (example.starts.tolist(), example.lengths.tolist(), example.rows.tolist()) == ([0, 1, 4], [5, 3], [0, 3])
    assert (example.tables[0].tolist(), example.tables[1, :1].tolist()) == ([7, 2], [5])
    assert (example.copies.tolist(), example.ids.tolist(), example.number, example.notes) == ([[3, 5]], [10, 11], 7, b"new: 11")


@st.composite
def steps(draw):
    """Sequences that decode, with and without drafts, and that read prompts, to their end or not."""
    count = draw(st.integers(1, 6))
    tables, batch, used = np.zeros((count, 8), np.int32), Batch(draw(st.integers(0, 2**40))), 0
    for number in range(count):
        computed, new = draw(st.integers(0, 12)), draw(st.integers(1, 8))
        drafts = draw(st.lists(st.integers(0, 99), max_size=3))
        samples = draw(st.booleans())
        blocks = list(range(used, used + -(-(computed + new + len(drafts)) // SIZE)))
        used += len(blocks)
        drafts = drafts if samples else []
        made = sequence(number, range(100 * number, 100 * number + computed + new + (not samples)), computed, blocks, tables)
        batch.add(made, new + len(drafts), drafts, samples)
    return batch, StepBuilder(tables, SIZE).build(batch, draw(st.binary(max_size=20)))


@given(steps())
def test_every_token_has_its_place(made):
    batch, step = made
    token = 0
    for i, (sequence, begin, num, drafts) in enumerate(zip(batch.sequences, batch.begins, batch.nums, batch.drafts, strict=True)):
        text = sequence.tokens[: begin + num - len(drafts)] + drafts
        assert (step.starts[i], step.lengths[i], step.num_drafts[i]) == (token, begin + num, len(drafts))
        for position in range(begin, begin + num):
            block = sequence.blocks[position // SIZE]
            assert (step.tokens[token], step.positions[token]) == (text[position], position)
            assert step.slots[token] == block * SIZE + position % SIZE
            token += 1
        last = range(token - 1 - len(drafts), token) if batch.samples[i] else []
        assert [r for r in step.rows.tolist() if step.starts[i] <= r < token] == list(last)
    assert token == len(step.tokens) == batch.num_tokens


@given(steps(), st.integers(0, 3))
def test_bytes_hold_the_same_step(made, spare):
    _, step = made
    buffer = pack(step)
    longer = bytearray(b"\xff" * (len(buffer) + 8 * spare))
    assert pack_into(step, longer) == packed_bytes(step) == len(buffer)
    assert len(buffer) % 8 == 0
    for back in (unpack(buffer), unpack(memoryview(longer)), unpack(bytes(buffer)), unpack(np.frombuffer(buffer, np.uint8))):
        for field in fields(step):
            sent, got = getattr(step, field.name), getattr(back, field.name)
            if isinstance(sent, np.ndarray):
                assert (sent.dtype, sent.shape) == (got.dtype, got.shape)
                assert (sent == got).all()
            else:
                assert sent == got


def test_nothing_is_copied_to_read(example):
    buffer = pack(example)
    whole = np.frombuffer(buffer, np.uint8)
    step = unpack(buffer)
    arrays = [getattr(step, f.name) for f in fields(step) if isinstance(getattr(step, f.name), np.ndarray)]
    assert all(np.shares_memory(array, whole) for array in arrays if array.size)


@given(steps())
def test_a_buffer_of_the_stated_size_is_enough(made):
    batch, step = made
    assert packed_bytes(step) <= most_bytes(batch.num_tokens, len(batch.nums), step.tables.shape[1], len(step.notes))


def test_what_is_no_step_is_not_read(example):
    buffer = pack(example)
    with pytest.raises(AssertionError):
        unpack(bytes(8) + buffer[8:])
    with pytest.raises(AssertionError):
        unpack(buffer[:-8])
    with pytest.raises(AssertionError):
        pack_into(example, bytearray(len(buffer) - 8))
