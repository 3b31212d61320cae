"""Outputs held to a JSON schema, a regular expression or a grammar, by xgrammar (Dong et al., XGrammar, 2024).

    Structure ──compile, once per source──▶ automaton over tokens ──▶ a mask of the vocabulary before each draw

This module is imported only where the optional package is installed (`pip install rayplane[structured]`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
import xgrammar

from rayplane.errors import RequestError
from rayplane.serve.sampling import Grammar, Structure

Tensor = torch.Tensor

CACHE_BYTES = 256 * 2**20
"""Of compiled grammars that are kept."""


class Grammars:
    """Makes matchers for one tokenizer."""

    def __init__(self, tokens: Sequence[str], tokenizer_json: str, vocab: int, end_tokens: Sequence[int]):
        """`tokens` by id, as the tokenizer spells them; `vocab` is the number of logits, which may be larger."""
        kind = _vocab_type(tokenizer_json)
        info = xgrammar.TokenizerInfo(list(tokens), kind, vocab_size=vocab, stop_token_ids=list(end_tokens))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
        self._vocab = vocab

    def __call__(self, structure: Structure) -> GrammarMatcher:
        """A matcher at the beginning of an output. Raises RequestError for a structure that makes no sense."""
        try:
            return GrammarMatcher(self._compiled(structure), self._vocab)
        except (RuntimeError, ValueError) as error:
            raise _refusal(error) from error

    def _compiled(self, structure: Structure) -> xgrammar.CompiledGrammar:
        match structure.kind:
            case Grammar.JSON_OBJECT:
                return self._compiler.compile_json_schema('{"type": "object"}', strict_mode=False)
            case Grammar.JSON_SCHEMA:
                return self._compiler.compile_json_schema(structure.source)
            case Grammar.REGEX:
                return self._compiler.compile_regex(structure.source)
            case Grammar.EBNF:
                return self._compiler.compile_grammar(structure.source)


class GrammarMatcher:
    """Where one output stands in its grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab: int):
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, vocab)

    def forbid(self, logits: Tensor) -> None:  # [V], in place
        """Leave the tokens that can come next; at the end of the grammar those that end the output."""
        if self._matcher.is_terminated():
            return
        if self._matcher.fill_next_token_bitmask(self._mask):
            xgrammar.apply_token_bitmask_inplace(logits[None], self._mask)

    def accept(self, token: int) -> None:
        """Go on by a token that was left."""
        if not self._matcher.is_terminated():
            self._matcher.accept_token(token)


def _refusal(error: Exception) -> RequestError:
    """Without the place in xgrammar's own sources that its message begins with."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return RequestError("structure", f"{text.split(': ', 1)[-1]}; mend the schema, expression or grammar")


def _vocab_type(tokenizer_json: str) -> xgrammar.VocabType:
    """How the tokenizer spells bytes, by its decoder."""
    decoder = json.dumps(json.loads(tokenizer_json).get("decoder") or {})
    if '"ByteLevel"' in decoder:
        return xgrammar.VocabType.BYTE_LEVEL
    return xgrammar.VocabType.BYTE_FALLBACK if '"ByteFallback"' in decoder else xgrammar.VocabType.RAW
