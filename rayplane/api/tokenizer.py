"""The model's tokenizer as the ingress needs it: text to ids, ids to bytes, and how its conversations look.

bytes                       ids 0-255 are the bytes themselves; 0 ends a text
DIR or tokenizer.json       a Hugging Face tokenizer with what stands beside it: tokenizer_config.json, chat_template.jinja,
                            generation_config.json
FILE.gguf                   the tokenizer in its metadata
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from rayplane.api.detokenize import ByteDecoder, Detokenizer
from rayplane.errors import DataError
from rayplane.serve.detokenise import Detokeniser
from rayplane.train.gguf_tokenizer import hf_files

FIELD = "serve.tokenizer"
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
PROBES = ("a", "0", ".", "\n")
"""Texts of which some tokenizer that is asked for knows one."""
BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """Text to ids and back. `vocab` ids are known; any of `end_tokens` ends a text."""

    model: tokenizers.Tokenizer | None
    """None where ids are bytes."""
    pieces: tuple[bytes, ...]
    """Bytes of each id; where text is more than its pieces one after the other, as near as they come."""
    spoken: tuple[bytes, ...]
    """The same, with nothing for special tokens."""
    exact: bool
    """Whether a text is its pieces one after the other."""
    end_tokens: frozenset[int]
    chat_template: str
    """Jinja; empty when there is none."""
    words: Mapping[str, str]
    """What the template knows beside the messages: bos_token and the like."""
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    """What stands before and behind a text that is a prompt; a conversation has what its template says."""

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    def encode(self, text: str, special: bool) -> tuple[int, ...]:
        """Ids of a text; with `special` also those that the model's texts begin or end with."""
        if self.model is None:
            return tuple(text.encode())
        ids = self.model.encode(text, add_special_tokens=False).ids
        return (*self.begin, *ids, *self.end) if special else tuple(ids)

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """The text of ids."""
        decoder = self.decoder(skip_special)
        return decoder.push(ids) + decoder.finish()

    def decoder(self, skip_special: bool) -> Detokenizer:
        """A decoder that takes ids as they come."""
        if self.exact or self.model is None:
            return ByteDecoder(self.spoken if skip_special else self.pieces)
        return Detokeniser(partial(self.model.decode, skip_special_tokens=skip_special))

    def piece(self, token: int) -> bytes:
        """Bytes of one id; nothing for one that the model has and the tokenizer does not know."""
        return self.pieces[token] if token < len(self.pieces) else b""


def open_tokenizer(source: str) -> TextTokenizer:
    """The tokenizer of a ServerConfig. DataError when it cannot be read."""
    if source == "bytes":
        pieces = tuple(bytes([i]) for i in range(256))
        return TextTokenizer(None, pieces, pieces, True, frozenset({0}), "", {})
    path = Path(source).expanduser()
    try:
        files = hf_files(path) if path.suffix == ".gguf" else _beside(path)
    except OSError as error:
        raise DataError(f"{FIELD}: cannot read {error.filename or path} ({error.strerror}); correct the path") from error
    try:
        return _from_files(files)
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"{FIELD}: {source} is not a tokenizer ({error}); download it again") from error


def _beside(path: Path) -> dict[str, bytes]:
    folder, first = (path, path / FILES[0]) if path.is_dir() else (path.parent, path)
    others = {name: (folder / name).read_bytes() for name in FILES[1:] if (folder / name).is_file()}
    return {FILES[0]: first.read_bytes(), **others}


def _from_files(files: Mapping[str, bytes]) -> TextTokenizer:
    model = tokenizers.Tokenizer.from_buffer(files[FILES[0]])
    model.no_truncation()
    model.no_padding()
    whole, config = json.loads(files[FILES[0]]), json.loads(files.get(FILES[1], b"{}"))
    special = {added["id"] for added in whole.get("added_tokens", ()) if added["special"]}
    exact = (whole.get("decoder") or {}).get("type") == "ByteLevel"
    names = [model.id_to_token(i) or "" for i in range(max(model.get_vocab().values(), default=-1) + 1)]
    pieces = tuple(_byte_level(name) if exact else _sentence_piece(name) for name in names)
    spoken = tuple(b"" if i in special else piece for i, piece in enumerate(pieces))
    words = {name: _token_text(config[name]) for name in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(name)}
    template = files[FILES[3]].decode() if FILES[3] in files else _template(config.get("chat_template"))
    ends = _end_tokens(model, words.get("eos_token"), json.loads(files.get(FILES[2], b"{}")))
    return TextTokenizer(model, pieces, spoken, exact, ends, template, words, *_around(model, config, words))


def _around(
    model: tokenizers.Tokenizer, config: Mapping[str, Any], words: Mapping[str, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tokenizer.json puts around a text, but that add_bos_token and add_eos_token have the last word, where they are given."""
    probe = next((text for text in PROBES if model.encode(text, add_special_tokens=False).ids), "")
    plain, whole = (tuple(model.encode(probe, add_special_tokens=special).ids) for special in (False, True))
    at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    begin, end = whole[:at], whole[at + len(plain) :]
    bos, eos = (model.token_to_id(words.get(f"{name}_token", "")) for name in ("bos", "eos"))
    adds_bos, adds_eos = config.get("add_bos_token"), config.get("add_eos_token")
    if bos is not None and adds_bos is not None and adds_bos != (begin[:1] == (bos,)):
        begin = (bos, *begin) if adds_bos else begin[1:]
    if eos is not None and adds_eos is not None and adds_eos != (end[-1:] == (eos,)):
        end = (*end, eos) if adds_eos else end[:-1]
    return begin, end


def _token_text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _template(given: Any) -> str:
    """A config's template; of several the default."""
    if isinstance(given, list):
        return next((str(t["template"]) for t in given if t.get("name") == "default"), "")
    return str(given or "")


def _end_tokens(model: tokenizers.Tokenizer, eos: str | None, generation: Mapping[str, Any]) -> frozenset[int]:
    named = model.token_to_id(eos) if eos else None
    ids = generation.get("eos_token_id")
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    return frozenset(int(i) for i in (named, *listed) if i is not None)


def _letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others are moved up from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


LETTERS = _letters()


def _byte_level(name: str) -> bytes:
    try:
        return bytes(LETTERS[letter] for letter in name)
    except KeyError:
        return name.encode()


def _sentence_piece(name: str) -> bytes:
    byte = BYTE_FALLBACK.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()
