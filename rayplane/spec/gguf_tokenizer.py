"""The tokenizer that a GGUF file carries in its metadata, as plain values.

tokenizer.ggml.model          "gpt2": byte-level BPE; others, such as SentencePiece's "llama", are refused
tokenizer.ggml.pre            name of the rule that cuts text before BPE, one of SPLITS (llama.cpp's llama-vocab.cpp)
tokenizer.ggml.tokens         a text per id; token_type 3 is a control token, 4 one that the user defined
tokenizer.ggml.merges         "left right", the first to be merged first
tokenizer.ggml.eos_token_id   ends a document
tokenizer.ggml.bos_token_id   begins one, where add_bos_token says so, or where it says nothing and the rule `pre` does
tokenizer.chat_template       how a conversation becomes text, where there is one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONTROL, USER_DEFINED = 3, 4

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Split:
    """How text is cut before BPE. Without a `pattern`, by GPT-2's."""

    pattern: str = ""
    digits: bool = False
    """Each digit stands alone."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""
    ignore_merges: bool = False
    """A word that is a token is not merged from its bytes."""
    begins: bool = False
    """Texts begin with the token for it, unless the file says otherwise."""


SPLITS = {
    "gpt-2": Split(),
    "smollm": Split(digits=True),
    "llama-bpe": Split(WORDS + "{1,3}" + REST, ignore_merges=True, begins=True),
    "qwen2": Split(WORDS + REST, nfc=True),
}
"""By `tokenizer.ggml.pre`: those of the families that the model covers."""

REMEDY = "name a tokenizer.json in train.data.tokenizer"


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A byte-level BPE tokenizer."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    control: tuple[str, ...]
    user_defined: tuple[str, ...]
    split: Split
    end: int | None
    chat_template: str
    begin: int | None
    adds_begin: bool
    adds_end: bool
    """Whether the two stand around a text that is read as a prompt."""


def gguf_tokenizer(fields: Mapping[str, Any]) -> GgufTokenizer:
    """The tokenizer in a GGUF file's metadata. ValueError when there is none, or one of another kind; says what to do."""
    if fault := _fault(fields):
        raise ValueError(f"{fault}; {REMEDY}")
    tokens = tuple(fields["tokenizer.ggml.tokens"])
    kinds = fields.get("tokenizer.ggml.token_type", ())

    def of_kind(wanted: int) -> tuple[str, ...]:
        return tuple(token for token, kind in zip(tokens, kinds, strict=False) if kind == wanted)

    begin, end = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    split = SPLITS[fields["tokenizer.ggml.pre"]]
    return GgufTokenizer(
        tokens=tokens,
        merges=tuple(fields["tokenizer.ggml.merges"]),
        control=of_kind(CONTROL),
        user_defined=of_kind(USER_DEFINED),
        split=split,
        end=end,
        chat_template=fields.get("tokenizer.chat_template", ""),
        begin=begin,
        adds_begin=begin is not None and bool(fields.get("tokenizer.ggml.add_bos_token", split.begins)),
        adds_end=end is not None and bool(fields.get("tokenizer.ggml.add_eos_token", False)),
    )


def _fault(fields: Mapping[str, Any]) -> str:
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind is None:
        return "carries no tokenizer"
    if kind != "gpt2":
        return f"carries a tokenizer of kind {kind!r}, and only byte-level BPE ('gpt2') can be read"
    if pre not in SPLITS:
        return f"cuts text by the rule {pre!r}, and only {', '.join(SPLITS)} are known"
    if missing := [name for name in ("tokens", "merges") if not isinstance(fields.get(f"tokenizer.ggml.{name}"), tuple)]:
        return f"carries a tokenizer without {' and '.join(missing)}"
    for name in ("bos", "eos"):
        number, count = fields.get(f"tokenizer.ggml.{name}_token_id"), len(fields["tokenizer.ggml.tokens"])
        if number is not None and number >= count:
            return f"says that its {name} token is number {number}, and has {count} of them"
    return ""
