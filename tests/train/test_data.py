"""Every kind of source gives the right tokens, in an order that depends on the index alone, and never what is held out."""

import json
import multiprocessing
import os
import re
import sysconfig
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from filelock import FileLock
from pyarrow import parquet

from rayplane.errors import DataError
from rayplane.spec.data_files import STDLIB
from rayplane.spec.job import DataSection
from rayplane.train.data import Dataset, open_dataset
from rayplane.train.documents import find_sources
from rayplane.train.parts import Part
from rayplane.train.pieces import read_pieces
from rayplane.train.token_shards import MIN_PIECE_BYTES


def opened(base: Path, *paths: str, vocab: int = 256, **fields) -> Dataset:
    section = DataSection(path=list(paths) or ["data"], **{"seq_len": 4, **fields})
    return open_dataset(section, base, base / "cache", vocab, timeout_s=20.0)


def stream(dataset: Dataset) -> list[int]:
    """All tokens of the training windows, joined."""
    windows = [dataset.train[i] for i in range(len(dataset.train))]
    return [int(windows[0][0]), *(int(t) for w in windows for t in w[1:])]


def words(base: Path) -> Path:
    """A word tokenizer with ids 0-5, whose `</s>` has id 5."""
    vocab = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "d": 4, "</s>": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    folder = base / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def text(tmp_path) -> Path:
    """40 lines of ten digits in 'data/digits.txt'."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "digits.txt").write_bytes(b"123456789\n" * 40)
    return tmp_path


@pytest.fixture
def counted(tmp_path) -> Path:
    """Tokens 0, 1, 2, ... 49999 in 'tokens.npy', so that a token tells its place."""
    np.save(tmp_path / "tokens.npy", np.arange(50_000, dtype=np.uint16))
    return tmp_path


def test_samples_are_a_permutation_of_the_windows_in_every_epoch(counted):
    dataset = opened(counted, "tokens.npy", vocab=50_000, seq_len=100)
    size = dataset.num_samples
    assert size == 499
    epochs = [[int(dataset.sample(e * size + i)[0]) for i in range(size)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(0, 49_900, 100))
    assert epochs[0] != epochs[1]
    assert epochs[0] != [int(opened(counted, "tokens.npy", vocab=50_000, seq_len=100, seed=1).sample(i)[0]) for i in range(size)]


def test_a_sample_depends_on_its_index_alone(counted):
    first, second = (opened(counted, "tokens.npy", vocab=50_000) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    forward = [first.sample(i) for i in range(64)]
    backward = [second.sample(i) for i in reversed(range(64))][::-1]
    assert np.array_equal(forward, backward)


def test_targets_are_one_token_ahead(counted):
    inputs, targets = opened(counted, "tokens.npy", vocab=50_000, seq_len=8).batch([3, 5, 70_000])
    assert inputs.shape == targets.shape == (3, 8)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs + 1, targets)


def test_a_rank_without_samples_gets_an_empty_batch(counted):
    inputs, targets = opened(counted, "tokens.npy", vocab=50_000, seq_len=8).batch([])
    assert inputs.shape == targets.shape == (0, 8)


def test_a_text_file_gives_its_bytes_and_a_separator(text):
    assert stream(opened(text)) == list(b"123456789\n" * 40 + b"\0")


def test_a_folder_is_read_sorted_and_filtered(tmp_path):
    for name, content in {"b.txt": "bb", "a/z.md": "zz", "a/skip.log": "no", ".git/x.txt": "no", "empty.txt": ""}.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(content)
    assert stream(opened(tmp_path, seq_len=1)) == list(b"zz\0bb\0")
    assert stream(opened(tmp_path, seq_len=1, include=["a/*.log"])) == list(b"no\0")


def test_a_file_named_twice_is_read_once(text):
    assert opened(text, "data", "data/digits.txt").fingerprint == opened(text, "data").fingerprint


def test_jsonl_gives_a_document_per_line(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"body": "aé"}\n\n{"body": "", "n": 1}\n{"body": "b\\nc"}\n')
    assert stream(opened(tmp_path, "data.jsonl", text_field="body", seq_len=1)) == list("aé\0b\nc\0".encode())


def test_parquet_gives_a_document_per_row(tmp_path):
    rows = [f"row {i}" for i in range(3000)]
    parquet.write_table(pa.table({"n": range(3000), "text": rows}), tmp_path / "data.parquet", row_group_size=700)
    assert stream(opened(tmp_path, "data.parquet", seq_len=1)) == list("".join(r + "\0" for r in rows).encode())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64"])
def test_token_arrays_are_used_as_they_are(tmp_path, dtype):
    tokens = np.arange(100, dtype=dtype)
    tokens.tofile(tmp_path / "data.bin")
    np.save(tmp_path / "data.npy", tokens[::-1].copy())
    dataset = opened(tmp_path, "data.bin", "data.npy", dtype=dtype, vocab=100, seq_len=3)
    assert dataset.num_samples == 66
    assert [dataset.train[i].tolist() for i in (0, 32, 33)] == [[0, 1, 2, 3], [96, 97, 98, 99], [99, 98, 97, 96]]
    assert isinstance(dataset.train.arrays[1].shards.shards[0].tokens, np.memmap)


def test_text_and_arrays_are_joined(text):
    np.save(text / "tokens.npy", np.arange(41, dtype=np.uint8))
    dataset = opened(text, "data", "tokens.npy")
    assert dataset.num_samples == 100 + 10
    assert dataset.train[109].tolist() == [36, 37, 38, 39, 40]


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer/tokenizer.json"])
def test_a_hugging_face_tokenizer_neither_truncates_nor_pads(tmp_path, name):
    words(tmp_path)
    (tmp_path / "data.txt").write_text("a b c d a")
    assert stream(opened(tmp_path, "data.txt", tokenizer=name, vocab=6, seq_len=1)) == [1, 2, 3, 4, 1, 5]


def test_the_configured_end_of_text_token_separates_documents(tmp_path):
    (words(tmp_path) / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "d"}}))
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert stream(opened(tmp_path, "data.jsonl", tokenizer="tokenizer", vocab=6, seq_len=1)) == [1, 4, 2, 4]


def test_the_standard_library_comes_without_its_tests():
    (source,) = find_sources(DataSection(path=[STDLIB]), Path())
    files = source.files
    inner = {f.relative_to(sysconfig.get_path("stdlib")).as_posix() for f in files}
    assert {"json/decoder.py", "argparse.py"} <= inner
    assert not [n for n in inner if {"test", "tests", "idle_test", "site-packages", "__pycache__"} & set(Path(n).parts)]
    assert list(files) == sorted(files)


@pytest.mark.parametrize(
    "content", ["é" * 5000, "line of text\n" * 1000, "\n" + "x" * 9000, "€\n" * 3000], ids=["é", "lines", "long", "€"]
)
def test_long_documents_come_in_bounded_pieces_of_whole_characters(tmp_path, content):
    (tmp_path / "long.txt").write_text(content)
    pieces = list(read_pieces(Part(tmp_path / "long.txt", 0, len(content.encode())), "text", 100))
    assert "".join(p.text.decode() for p in pieces) == content
    assert max(len(p.text) for p in pieces) <= 100
    assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [p.start for p in pieces] == [sum(len(p.text) for p in pieces[:i]) for i in range(len(pieces))]


def test_held_out_documents_are_never_trained_on(tmp_path):
    records = [{"text": f"{i:04}"} for i in range(200)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    dataset = opened(tmp_path, "data.jsonl", holdout=0.1, seq_len=1)
    kept = stream(replace(dataset, train=dataset.kept_aside))
    trained, held = (Counter(bytes(s).decode().rstrip("\0").split("\0")) for s in (stream(dataset), kept))
    assert len(held) == 20
    assert not trained & held
    assert trained + held == Counter(r["text"] for r in records)


def test_a_share_of_one_long_file_can_be_held_out(tmp_path):
    lines = [f"{i:07}\n" for i in range(10 * MIN_PIECE_BYTES // 8)]
    (tmp_path / "data.txt").write_text("".join(lines))
    dataset = opened(tmp_path, "data.txt", holdout=0.2, seq_len=1)
    kept = bytes(stream(replace(dataset, train=dataset.kept_aside)))
    trained = bytes(stream(dataset))
    assert len(kept.strip(b"\0")) == pytest.approx(2 * MIN_PIECE_BYTES, abs=16)
    assert Counter(trained.replace(b"\0", b"").split()) + Counter(kept.replace(b"\0", b"").split()) == Counter(
        line.strip().encode() for line in lines
    )


def test_held_out_blocks_of_an_array_are_no_targets_in_training(counted):
    dataset = opened(counted, "tokens.npy", vocab=50_000, seq_len=10, holdout=0.05, holdout_samples=10_000)
    targets = [t for i in range(dataset.num_samples) for t in dataset.train[i][1:].tolist()]
    held = [t for i in range(dataset.num_holdout) for t in dataset.holdout(i)[1:].tolist()]
    assert sorted(targets + held) == list(range(1, 49_991))
    assert len(held) == pytest.approx(2500, rel=0.1)


def test_measured_holdout_is_spread_evenly(counted):
    dataset = opened(counted, "tokens.npy", vocab=50_000, seq_len=10, holdout=0.5, holdout_samples=10)
    firsts = [int(dataset.holdout(i)[0]) for i in range(dataset.num_holdout)]
    assert len(firsts) == 10
    assert all(i * 5000 - 500 <= first <= i * 5000 + 500 for i, first in enumerate(firsts))


def test_the_seed_changes_what_is_held_out(counted):
    first, second = (opened(counted, "tokens.npy", vocab=50_000, holdout=0.05, seed=s) for s in (0, 1))
    assert first.holdout(0).tolist() != second.holdout(0).tolist()
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize("change", [{"seed": 1}, {"seq_len": 5}, {"holdout": 0.3}], ids=str)
@pytest.mark.parametrize("file", ["data.jsonl", "tokens.npy"])
def test_the_fingerprint_tells_of_all_that_changes_the_samples(tmp_path, file, change):
    (tmp_path / "data.jsonl").write_text('{"text": "abcdefghi"}\n' * 100)
    np.save(tmp_path / "tokens.npy", np.arange(200, dtype=np.uint8))
    first = opened(tmp_path, file, holdout=0.1)
    assert opened(tmp_path, file, **{"holdout": 0.1} | change).fingerprint != first.fingerprint
    assert opened(tmp_path, file, holdout=0.1, holdout_samples=1).fingerprint == first.fingerprint


def test_another_array_of_the_same_size_has_another_fingerprint(tmp_path):
    fingerprints = set()
    for last in (1, 2):
        np.save(tmp_path / "tokens.npy", np.array([0] * 99 + [last], dtype=np.uint8))
        fingerprints.add(opened(tmp_path, "tokens.npy").fingerprint)
    assert len(fingerprints) == 2


def test_another_holdout_is_not_taken_from_the_cache(text):
    (text / "data" / "more.jsonl").write_text('{"text": "abcdefghi"}\n' * 100)
    sizes = [len(opened(text, holdout=share).kept_aside) for share in (0.0, 0.1, 0.3)]
    assert 0 == sizes[0] < sizes[1] < sizes[2]


def test_tokenising_a_big_file_takes_little_memory(tmp_path):
    (tmp_path / "big.txt").write_bytes(b"some text\n" * 3_000_000)
    tracemalloc.start()
    dataset = opened(tmp_path, "big.txt", holdout=0.1, seq_len=100)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert dataset.num_samples > 250_000
    assert peak_bytes < 12 << 20


def built_files(base: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (base / "cache").rglob("*.bin")}


def test_tokens_are_built_once(text):
    first = opened(text)
    before = built_files(text)
    assert opened(text).fingerprint == first.fingerprint
    assert built_files(text) == before
    assert not list((text / "cache").rglob("*.tmp"))


def test_tokens_are_built_anew_when_a_file_changes(text):
    before = opened(text)
    (text / "data" / "digits.txt").write_bytes(b"abc" * 20)
    assert stream(opened(text)) == list(b"abc" * 20 + b"\0")
    assert opened(text).fingerprint != before.fingerprint


def test_tokens_cut_short_are_built_anew(text):
    before = opened(text)
    file = next((text / "cache").rglob("*.bin"))
    os.truncate(file, 100)
    assert stream(opened(text)) == list(b"123456789\n" * 40 + b"\0")
    assert opened(text).fingerprint == before.fingerprint


def open_and_report(base: Path, barrier, reports) -> None:
    barrier.wait(60)
    reports.put(opened(base).fingerprint)


def test_processes_that_build_at_once_agree_and_leave_nothing_behind(text):
    spawn = multiprocessing.get_context("spawn")
    barrier, reports = spawn.Barrier(3), spawn.Queue()
    processes = [spawn.Process(target=open_and_report, args=(text, barrier, reports)) for _ in range(3)]
    for process in processes:
        process.start()
    fingerprints = {reports.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert fingerprints == {opened(text).fingerprint}
    assert len(built_files(text)) == 1


def failure(base: Path, *paths: str, **fields) -> str:
    with pytest.raises(DataError) as caught:
        opened(base, *paths, **fields)
    return str(caught.value)


def test_a_build_that_never_ends_is_not_waited_for(text):
    opened(text)
    for file in (text / "cache").rglob("*.bin"):
        file.unlink()
    lock = next((text / "cache").glob("*.lock"))
    section = DataSection(path=["data"], seq_len=4)
    with FileLock(lock), pytest.raises(DataError, match="another rank has been tokenising for 0 s"):
        open_dataset(section, text, text / "cache", 256, timeout_s=0.1)


def test_a_path_that_does_not_exist_is_named(tmp_path):
    assert "nowhere is neither a file nor a folder" in failure(tmp_path, "nowhere")


def test_a_folder_without_a_matching_file_is_named(text):
    assert "folder data has no file that matches include" in failure(text, include=["*.rs"])


def test_too_little_data_is_refused_with_both_numbers(text):
    message = failure(text, seq_len=1000)
    assert "401 tokens in all" in message
    assert "seq_len + 1 = 1001" in message


def test_a_holdout_without_a_sample_is_refused(text):
    assert "keeps no sample aside" in failure(text, holdout=0.0001)


def test_text_that_is_not_utf8_is_named(tmp_path):
    words(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"a b c\n" * 1000 + b"caf\xe9 a\n")
    assert f"{tmp_path}/latin.txt: is not UTF-8 text (byte 6003:" in failure(tmp_path, "latin.txt", tokenizer="tokenizer", vocab=6)
    assert bytes(stream(opened(tmp_path, "latin.txt", seq_len=1))).endswith(b"caf\xe9 a\n\0")


def test_ids_outside_the_vocabulary_are_named_with_their_file(text):
    np.save(text / "tokens.npy", np.array([1, 2, 300, 4, 5] * 9, dtype=np.uint16))
    np.save(text / "negative.npy", np.array([1, -2] * 9, dtype=np.int32))
    late = np.ones((1 << 22) + 9, dtype=np.uint16)
    late[-2] = 301
    np.save(text / "late.npy", late)
    assert f"late.npy: token {(1 << 22) + 7}: id 301 is outside" in failure(text, "late.npy")
    (text / "late.txt").write_text("a\n" * 5000 + "z\n" + "a\n" * 5000)
    place = re.search(r"late\.txt: token (\d+) from byte (\d+) on: id 122 is outside", failure(text, "late.txt", vocab=100))
    assert place and int(place[1]) + int(place[2]) == 10_000 and int(place[2]) > 0
    assert "digits.txt: token 1: id 50 is outside the model's vocabulary of 50" in failure(text, vocab=50)
    assert "tokens.npy: token 2: id 300 is outside" in failure(text, "tokens.npy")
    assert "negative.npy: token 1: id -2 is outside" in failure(text, "negative.npy")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x"}', "data.jsonl:2: has no field 'text' (has body); set train.data.text_field"),
        ('{"text": 3}', "data.jsonl:2: 'text' is int, not text"),
        ("[1]", "data.jsonl:2: has no field 'text'"),
        ("{", "data.jsonl:2: is not a JSON record"),
        ('{"text": "\\ud800"}', "data.jsonl:2: 'text' is not valid Unicode"),
    ],
)
def test_a_bad_record_is_named_with_its_line(tmp_path, line, said):
    (tmp_path / "data.jsonl").write_text('{"text": "a fine record"}\n' + line)
    assert said in failure(tmp_path, "data.jsonl")


def test_a_bad_parquet_file_is_named(tmp_path):
    parquet.write_table(pa.table({"body": ["x"], "none": pa.array([None], pa.string())}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"junk, not parquet at all")
    assert "a.parquet: has no column 'text' (has body, none)" in failure(tmp_path, "a.parquet")
    assert "a.parquet: row 1: 'none' is NoneType" in failure(tmp_path, "a.parquet", text_field="none")
    assert "b.parquet: cannot be read" in failure(tmp_path, "b.parquet")


def test_a_bad_token_array_is_named(tmp_path):
    np.save(tmp_path / "square.npy", np.zeros((3, 3), dtype=np.int64))
    np.save(tmp_path / "float.npy", np.zeros(9))
    np.save(tmp_path / "object.npy", np.array([{}, None]), allow_pickle=True)
    (tmp_path / "junk.npy").write_bytes(b"junk")
    (tmp_path / "odd.bin").write_bytes(b"123")
    assert "holds int64[3, 3], not a one-dimensional array" in failure(tmp_path, "square.npy")
    assert "holds float64[9]" in failure(tmp_path, "float.npy")
    assert "object.npy: cannot be read as an array of tokens" in failure(tmp_path, "object.npy")
    assert "junk.npy: cannot be read as an array of tokens" in failure(tmp_path, "junk.npy")
    assert "3 bytes are no whole number of uint16 elements" in failure(tmp_path, "odd.bin")


def test_a_tokenizer_that_is_not_there_is_named(text):
    (text / "broken.json").write_text("{}")
    assert "train.data.tokenizer: gone: cannot read" in failure(text, tokenizer="gone")
    assert "is not a tokenizer.json" in failure(text, tokenizer="broken.json")


def test_a_cache_folder_that_cannot_be_made_is_named(text):
    (text / "cache").write_text("a file stands here")
    assert "free space there or change checkpoint.dir" in failure(text)
