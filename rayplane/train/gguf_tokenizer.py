"""A GGUF file's tokenizer as one of Hugging Face's library, as the model's own tokenizer.json would have made it.

text ─ NFC ─▶ special tokens cut out ─▶ pattern, digits ─▶ bytes as letters ─▶ BPE ─▶ ids
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rayplane.errors import DataError
from rayplane.spec.gguf_header import read_gguf_header
from rayplane.spec.gguf_tokenizer import GgufTokenizer, Split, gguf_tokenizer


def read_gguf_tokenizer(file: Path) -> tuple[Tokenizer, str, int | None]:
    """(tokenizer, a hash of all that its ids depend on, the token that ends a document). DataError when the file carries none."""
    carried, tokenizer = _read(file)
    digest = hashlib.blake2b(json.dumps(asdict(carried)).encode(), digest_size=16)
    return tokenizer, digest.hexdigest(), carried.end


def hf_files(file: Path) -> dict[str, bytes]:
    """The same tokenizer as the files of a Hugging Face folder, by their names."""
    carried, tokenizer = _read(file)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"eos_token": carried.tokens[carried.end]} if carried.end is not None else {}
    config |= {"chat_template": carried.chat_template} if carried.chat_template else {}
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config, indent=2).encode()}


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
