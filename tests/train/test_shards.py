"""Shards are the same bytes whoever makes them, know where documents start, and are made once."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train.data import Dataset, open_dataset
from rayplane.train.parts import Part, cut_units
from rayplane.train.pieces import read_pieces
from rayplane.train.tokens import in_turn

RECORDS = [f"{i:04} " + "word " * (i % 37) + "é" * (i % 3) for i in range(700)]


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Path:
    """Text of all three kinds that makes dozens of shards."""
    monkeypatch.setattr("rayplane.train.parts.MIN_UNIT_BYTES", 4000)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("".join(json.dumps({"text": r}, ensure_ascii=False) + "\n" for r in RECORDS))
    (tmp_path / "data" / "b.txt").write_text("\n".join(RECORDS))
    parquet.write_table(pa.table({"text": RECORDS}), tmp_path / "data" / "c.parquet", row_group_size=50, compression="none")
    return tmp_path


def opened(base: Path, mapper=in_turn, cache="cache", **fields) -> Dataset:
    section = DataSection.model_validate({"path": ["data"], "seq_len": 16, **fields})
    return open_dataset(section, base, base / cache, 256, 20.0, mapper)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def backwards(build, numbers):
    return map(build, reversed(numbers))


def threads(build, numbers):
    with ThreadPoolExecutor(3) as pool:
        yield from pool.map(build, numbers)


def pickled(build, numbers):
    return map(pickle.loads(pickle.dumps(build)), numbers)


def test_shards_are_the_same_bytes_in_a_process_that_was_sent_a_tokenizer(corpus):
    vocab = {"[UNK]": 0, "word": 1, "</s>": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(corpus / "tokenizer.json"))
    for mapper in (in_turn, pickled):
        opened(corpus, mapper, mapper.__name__, tokenizer="tokenizer.json")
    assert content(corpus / "pickled") == content(corpus / "in_turn")


def test_what_a_killed_builder_left_is_cleared_away(corpus):
    def leaves(build, numbers):
        Path(build.folder, "00003.bin.other-host.tmp").write_text("half a shard")
        return map(build, numbers)

    opened(corpus, leaves)
    assert not list((corpus / "cache").rglob("*.tmp"))


def test_shards_are_the_same_bytes_whoever_makes_them(corpus):
    fingerprints = {opened(corpus, mapper, mapper.__name__).fingerprint for mapper in (in_turn, backwards, threads)}
    first, *others = (content(corpus / name) for name in ("in_turn", "backwards", "threads"))
    assert len([name for name in first if name.endswith(".bin")]) > 20
    assert all(other == first for other in others)
    assert len(fingerprints) == 1


def test_cut_or_whole_the_tokens_are_the_same(corpus, monkeypatch):
    cut = opened(corpus).train.arrays[0]
    monkeypatch.setattr("rayplane.train.parts.MIN_UNIT_BYTES", 1 << 20)
    whole = opened(corpus, cache="other").train.arrays[0]
    assert (len(cut.shards.shards) > 20, len(whole.shards.shards)) == (True, 1)
    assert np.array_equal(cut.read(0, len(cut)), whole.read(0, len(whole)))
    assert np.array_equal(cut.starts(0, len(cut)), whole.starts(0, len(whole)))


def test_an_interrupted_build_goes_on_where_it_was(corpus):
    opened(corpus, cache="undisturbed")
    made: list[int] = []

    def stops(build, numbers):
        for number in numbers[:9]:
            made.append(number)
            yield build(number)
        raise KeyboardInterrupt

    def counts(build, numbers):
        made.extend(numbers)
        return map(build, numbers)

    with pytest.raises(KeyboardInterrupt):
        opened(corpus, stops)
    opened(corpus, counts)
    assert sorted(set(made)) == sorted(made)
    assert content(corpus / "cache") == content(corpus / "undisturbed")


def test_only_a_shard_cut_short_is_made_again(corpus):
    before = opened(corpus).fingerprint
    torn = sorted((corpus / "cache").rglob("*.pieces"))[5]
    os.truncate(torn, 8)
    made: list[int] = []
    assert opened(corpus, lambda build, numbers: (made.append(n) or build(n) for n in numbers)).fingerprint == before
    assert made == [5]


def test_another_seed_share_or_length_takes_the_same_shards(corpus):
    opened(corpus)

    def refuses(build, numbers):
        raise AssertionError("tokenised again")

    assert opened(corpus, refuses, seed=3, holdout=0.1, seq_len=40, path=[{"path": "data", "weight": 2}]).num_samples > 0


def test_shards_that_another_machine_kept_to_itself_are_missed(corpus):
    with pytest.raises(DataError, match=r"shard 0 is not in .*; the folder must be the same one on every node"):
        opened(corpus, lambda build, numbers: ("" for _ in numbers))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6])
def test_documents_start_behind_separators(corpus, share):
    (corpus / "data" / "d.txt").write_text("a long line\n" * 3000)
    dataset = opened(corpus, holdout=share)
    for windows in (dataset.train, dataset.kept_aside) if share else (dataset.train,):
        array = windows.arrays[0]
        tokens = array.read(0, len(array))
        expected = [0, *(np.flatnonzero(tokens[:-1] == 0) + 1).tolist()]
        assert array.starts(0, len(array)).tolist() == expected
        for number in range(len(windows)):
            first = number * 16
            assert windows.starts(number).tolist() == [e - first for e in expected if first <= e <= first + 16]


def test_a_sample_says_where_its_documents_start(corpus):
    dataset = opened(corpus, holdout=0.1)
    for k in range(200):
        sample = dataset.sample(k)
        inner = [i for i in dataset.starts(k) if i]
        assert inner == [i for i in range(1, 17) if sample[i - 1] == 0]
    assert [len(dataset.holdout_starts(i)) for i in range(dataset.num_holdout)]


def test_held_out_and_trained_text_make_up_the_whole(corpus):
    whole, dataset = opened(corpus).train.arrays[0], opened(corpus, holdout=0.2)
    sides = [bytes(a.read(0, len(a)).astype(np.uint8)) for a in (dataset.train.arrays[0], dataset.kept_aside.arrays[0])]
    everything = bytes(whole.read(0, len(whole)).astype(np.uint8))
    assert sorted(b"".join(sides).replace(b"\0", b"")) == sorted(everything.replace(b"\0", b""))


LINES = st.lists(st.text(st.sampled_from("aé€\U0001f600 "), max_size=12), max_size=30)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(LINES, st.integers(4, 60), st.integers(4, 30), st.booleans())
def test_the_parts_of_a_text_hold_it_whole_and_once(tmp_path, monkeypatch, lines, size, reach, ended):
    monkeypatch.setattr("rayplane.train.pieces.LINE_END_BYTES", reach + 4)
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + ("\n" if ended else ""))
    pieces = [p for unit in cut_units([path], size) for part in unit for p in read_pieces(part, "text", 20)]
    assert b"".join(p.text for p in pieces) == path.read_bytes()
    assert "".join(p.text.decode() for p in pieces) == path.read_text()
    assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True] * bool(pieces)
    assert [p.start for p in pieces] == [sum(len(p.text) for p in pieces[:i]) for i in range(len(pieces))]


@quick
@given(LINES, st.integers(1, 60))
def test_the_parts_of_a_jsonl_have_every_record_once_on_its_line(tmp_path, lines, size):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    pieces = [p for unit in cut_units([path], size) for part in unit for p in read_pieces(part, "text", 100)]
    assert [(p.text.decode(), str(p.where)) for p in pieces] == [(t, f"{path}:{n}") for n, t in enumerate(lines, 1) if t]


def test_small_files_share_a_unit_and_large_ones_are_cut(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    for path, size in zip(paths, (10, 20, 250, 5), strict=True):
        path.write_bytes(b"x" * size)
    a, b, c, d = paths
    assert cut_units(paths, 100) == [
        (Part(a, 0, 10), Part(b, 0, 20)),
        (Part(c, 0, 100),),
        (Part(c, 100, 200),),
        (Part(c, 200, 250), Part(d, 0, 5)),
    ]


def test_a_document_mask_needs_documents(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(100, dtype=np.uint8))
    with pytest.raises(DataError, match=r"train.data.document_mask: .*tokens.npy does not say where documents start; set"):
        opened(tmp_path, path=["tokens.npy"], document_mask=True)
