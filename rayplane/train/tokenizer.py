"""Text to token ids.

bytes                       ids 0-255 are the bytes themselves; byte 0 stands between documents
DIR or tokenizer.json       a Hugging Face tokenizer; its end-of-text token stands between documents, where it has one
FILE.gguf                   the tokenizer in its metadata (gguf_tokenizer.py), as if it were a tokenizer.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers

from rayplane.errors import DataError
from rayplane.train.arrays import Tokens
from rayplane.train.gguf_tokenizer import read_gguf_tokenizer
from rayplane.train.pieces import Piece

END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Usual end-of-text tokens, for a tokenizer.json without a tokenizer_config.json beside it."""


class Tokenizer(Protocol):
    """`fingerprint` changes whenever the ids of some text might; `separator` ends a document."""

    @property
    def fingerprint(self) -> str:
        """Names this tokenizer."""

    @property
    def separator(self) -> int | None:
        """Token between documents; None when there is none."""

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]:
        """Token ids of each piece, without special tokens."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """One token per byte."""

    fingerprint: str = "bytes"
    separator: int | None = 0

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]:
        """The bytes of each piece."""
        return [np.frombuffer(piece.text, dtype=np.uint8) for piece in pieces]


@dataclass(frozen=True, slots=True)
class HfTokenizer:
    """A tokenizer.json, run by Hugging Face's tokenizers library."""

    tokenizer: tokenizers.Tokenizer
    fingerprint: str
    separator: int | None

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]:
        """Token ids of each piece; DataError when one is not UTF-8."""
        encodings = self.tokenizer.encode_batch_fast([_decoded(piece) for piece in pieces], add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


def open_tokenizer(name: str, base: Path) -> Tokenizer:
    """The tokenizer that a data section names; paths are relative to `base`. DataError when there is none."""
    if name == "bytes":
        return ByteTokenizer()
    path = base / Path(name).expanduser()
    if path.suffix == ".gguf":
        carried, digest, end = read_gguf_tokenizer(path)
        return HfTokenizer(carried, f"{digest}-{end}", end)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = file.read_bytes()
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except OSError as error:
        remedy = "give bytes, model, a tokenizer.json, or a folder that holds one"
        raise DataError(f"train.data.tokenizer: {name}: cannot read {file} ({error.strerror}); {remedy}") from error
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"train.data.tokenizer: {file} is not a tokenizer.json ({error}); download it again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    separator = _separator(tokenizer, file.with_name("tokenizer_config.json"))
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return HfTokenizer(tokenizer, f"{digest}-{separator}", separator)


def _separator(tokenizer: tokenizers.Tokenizer, config: Path) -> int | None:
    """Id of the configured end-of-text token, else of a usual one that the tokenizer knows."""
    named: list[str] = []
    if config.is_file():
        try:
            token = json.loads(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise DataError(f"train.data.tokenizer: {config} is not a JSON object ({error}); download it again") from error
        named = [token["content"] if isinstance(token, dict) else token] if token else []
    ids = (tokenizer.token_to_id(token) for token in named or END_TOKENS)
    return next((i for i in ids if i is not None), None)


def _decoded(piece: Piece) -> str:
    try:
        return piece.text.decode()
    except UnicodeDecodeError as error:
        place = piece.start + error.start
        raise DataError(
            f"{piece.where}: is not UTF-8 text (byte {place}: {error.reason}); convert it, leave it out, or use tokenizer: bytes"
        ) from error
