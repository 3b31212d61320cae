"""Megatron's .bin and .idx, written here by the format's description, are read with their documents."""

import struct
from pathlib import Path

import numpy as np
import pytest

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train.data import Dataset, open_dataset

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write(prefix: Path, documents: list[list[list[int]]], dtype="uint16", code=0, version=1, magic=b"MMIDIDX\x00\x00") -> None:
    """`documents` are lists of sequences of tokens."""
    sequences = [s for document in documents for s in document]
    np.concatenate([np.array(s, dtype=dtype) for s in sequences]).tofile(prefix.with_suffix(".bin"))
    sizes = np.array([len(s) for s in sequences], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum(sizes[:-1]))).astype(np.int64) * np.dtype(dtype).itemsize
    index = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    head = struct.pack("<9sQBQQ", magic, version, code or CODES[dtype], len(sizes), len(index))
    prefix.with_suffix(".idx").write_bytes(head + sizes.tobytes() + starts.tobytes() + index.tobytes())


def opened(base: Path, *paths, vocab=1000, **fields) -> Dataset:
    section = DataSection.model_validate({"path": list(paths), "seq_len": 4, **fields})
    return open_dataset(section, base, base / "cache", vocab, timeout_s=20.0)


DOCUMENTS = [[[1, 2, 3], [4, 5]], [[6]], [], [[7, 8, 9, 10, 11, 12]], [[13]]]


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize("path", ["corpus.idx", "corpus.bin", "corpus"])
def test_tokens_and_documents_are_found_by_index_data_or_prefix(tmp_path, dtype, path):
    write(tmp_path / "corpus", DOCUMENTS, dtype)
    dataset = opened(tmp_path, path, document_mask=True)
    assert [dataset.train[i].tolist() for i in range(3)] == [[1, 2, 3, 4, 5], [5, 6, 7, 8, 9], [9, 10, 11, 12, 13]]
    assert [dataset.train.starts(i).tolist() for i in range(3)] == [[0], [1, 2], [4]]
    assert isinstance(dataset.train.arrays[1].shards.shards[0].tokens, np.memmap)


def test_a_folder_may_hold_them(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "one", DOCUMENTS)
    write(tmp_path / "data" / "two", [[[21, 22, 23, 24, 25]]])
    dataset = opened(tmp_path, "data")
    assert [dataset.train[i].tolist() for i in (0, 3)] == [[1, 2, 3, 4, 5], [21, 22, 23, 24, 25]]


def test_trailing_modes_of_multimodal_data_are_no_matter(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    with (tmp_path / "corpus.idx").open("ab") as stream:
        stream.write(bytes(6))
    assert opened(tmp_path, "corpus").num_samples == 3


def failure(base: Path, **fields) -> str:
    with pytest.raises(DataError) as caught:
        opened(base, "corpus.idx", **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"magic": b"\xfftOc1234\x00"}, "does not begin as an indexed dataset (MMIDIDX) does; give a .idx"),
        ({"version": 2}, "has version 2 of the format, and only 1 is known"),
        ({"code": 7}, "has elements of type code 7, which are no integers"),
    ],
)
def test_another_format_is_named(tmp_path, fields, said):
    write(tmp_path / "corpus", DOCUMENTS, **fields)
    assert f"corpus.idx: {said}" in failure(tmp_path)


def test_an_index_cut_short_or_alone_is_named(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    whole = (tmp_path / "corpus.idx").read_bytes()
    (tmp_path / "corpus.idx").write_bytes(whole[:-3])
    assert f"corpus.idx: {len(whole) - 3} bytes, but 5 sequences and 6 document entries take {len(whole)}" in failure(tmp_path)
    (tmp_path / "corpus.idx").write_bytes(whole[:20])
    assert "does not begin as an indexed dataset" in failure(tmp_path)
    (tmp_path / "corpus.idx").write_bytes(whole)
    (tmp_path / "corpus.bin").write_bytes(bytes(20))
    assert "corpus.bin: holds 10 tokens, corpus.idx speaks of 13; copy both" in failure(tmp_path)
    (tmp_path / "corpus.bin").unlink()
    assert "corpus.idx: corpus.bin does not lie beside it" in failure(tmp_path)


def patched(path: Path, place: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + 8] = struct.pack("<q", value)
    path.write_bytes(content)


def test_sequences_out_of_order_are_named(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    patched(tmp_path / "corpus.idx", 34 + 5 * 4 + 2 * 8, 4)
    assert "corpus.idx: sequence 2 begins at byte 4, not where the one before it ends (10)" in failure(tmp_path)


def test_documents_out_of_order_are_named(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    patched(tmp_path / "corpus.idx", 34 + 5 * 12 + 1 * 8, 9)
    assert "its documents are not in order, or end behind its 5 sequences" in failure(tmp_path)


def test_ids_outside_the_vocabulary_are_named_with_the_data_file(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    assert "corpus.bin: token 12: id 13 is outside the model's vocabulary of 13" in failure(tmp_path, vocab=13)
