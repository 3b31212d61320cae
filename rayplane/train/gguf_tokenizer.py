"""A GGUF file's tokenizer as one of Hugging Face's library, as the model's own tokenizer.json would have made it.

text ─ NFC ─▶ special tokens cut out ─▶ pattern, digits ─▶ bytes as letters ─▶ BPE ─▶ ids
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from rayplane.errors import DataError
from rayplane.spec.gguf_header import read_gguf_header
from rayplane.spec.gguf_tokenizer import GgufTokenizer, Split, gguf_tokenizer

AROUND = ("begin", "adds_begin", "adds_end")
"""What the ids of documents do not depend on."""


def read_gguf_tokenizer(file: Path) -> tuple[Tokenizer, str, int | None]:
    """(tokenizer, a hash of all that its ids depend on, the token that ends a document). DataError when the file carries none."""
    carried, tokenizer = _read(file)
    ids = {name: value for name, value in asdict(carried).items() if name not in AROUND}
    del ids["split"]["begins"]
    digest = hashlib.blake2b(json.dumps(ids).encode(), digest_size=16)
    return tokenizer, digest.hexdigest(), carried.end


def hf_files(file: Path) -> dict[str, bytes]:
    """The same tokenizer as the files of a Hugging Face folder, by their names."""
    carried, tokenizer = _read(file)
    tokens, around = carried.tokens, [("bos", carried.begin, carried.adds_begin), ("eos", carried.end, carried.adds_end)]
    config: dict[str, str | bool] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, number, adds in around:
        config |= {f"{name}_token": tokens[number], f"add_{name}_token": adds} if number is not None else {}
    config |= {"chat_template": _begun(carried)} if carried.chat_template else {}
    if carried.adds_begin or carried.adds_end:
        text = " ".join(["bos"] * carried.adds_begin + ["$A"] + ["eos"] * carried.adds_end)
        special = [
            {"id": name, "ids": [number], "tokens": [tokens[number]]} for name, number, adds in around if adds and number is not None
        ]
        tokenizer.post_processor = processors.TemplateProcessing(single=text, pair=None, special_tokens=special)
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config, indent=2).encode()}


def _begun(carried: GgufTokenizer) -> str:
    """The chat template, which alone says how a conversation begins: here it does so as a text does."""
    template = carried.chat_template
    if not carried.adds_begin or carried.begin is None or "bos_token" in template or carried.tokens[carried.begin] in template:
        return template
    return "{{ bos_token }}" + template


def _read(file: Path) -> tuple[GgufTokenizer, Tokenizer]:
    try:
        carried = gguf_tokenizer(read_gguf_header(file).fields)
        return carried, build(carried)
    except OSError as error:
        raise DataError(f"train.data.tokenizer: cannot read {file} ({error.strerror}); correct the path") from error
    except ValueError as error:
        raise DataError(f"train.data.tokenizer: {file} {error}") from error


def build(carried: GgufTokenizer) -> Tokenizer:
    """The tokenizer. ValueError when its merges make no sense."""
    pairs = [merge.split(" ") for merge in carried.merges]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise ValueError(f"has a merge of {len(wrong)} tokens; download it again")
    merges = [(left, right) for left, right in pairs]
    vocab = {token: number for number, token in enumerate(carried.tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=carried.split.ignore_merges))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"has a tokenizer that does not fit together ({error}); download it again") from error
    if carried.split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_cuts(carried.split))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in carried.control])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in carried.user_defined])
    return tokenizer


def _cuts(split: Split) -> list[pre_tokenizers.PreTokenizer]:
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    pattern = [pre_tokenizers.Split(Regex(split.pattern), behavior="isolated")] if split.pattern else []
    return [*digits, *pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.pattern)]
