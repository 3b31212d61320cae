"""The last stage's choice of tokens: what it knows of each sequence, and the draw.

    logits [R, V] ─▶ logprobs, where asked for ─▶ penalties, bias, minimum length, grammar ─▶ draw ─▶ Sampled

A sequence's rows are those of its last token and of its drafts. A draft is right where the token drawn at its place equals it, so
that a text is the same with and without drafts (prompt lookup; Leviathan et al., 2023, for a draft of certainty).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch

from rayplane.serve.draw import draw
from rayplane.serve.notes import Admission
from rayplane.serve.outputs import Sampled, TokenLogprob
from rayplane.serve.randoms import uniforms
from rayplane.serve.sampling import Structure

Tensor = torch.Tensor


class Matcher(Protocol):
    """Follows a grammar through the tokens of one output."""

    def forbid(self, logits: Tensor) -> None:
        """Set the logits [V] of tokens that cannot come next to -inf."""

    def accept(self, token: int) -> None:
        """Go on by a token."""


NewMatcher = Callable[[Structure], Matcher]


@dataclass(frozen=True, slots=True)
class Due:
    """A sequence that is due its next tokens, with its guesses of them: as many rows of logits and one more."""

    number: int
    drafts: tuple[int, ...] = ()


class _Known:
    """A sequence's parameters, and as much of its tokens as they ask for."""

    def __init__(self, admission: Admission, vocab: int, new_matcher: NewMatcher):
        self.params = admission.params
        self.end_tokens = list(admission.end_tokens)
        p = self.params
        penalised = p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty
        self.counts = torch.zeros(vocab, dtype=torch.float32) if penalised else None
        self.seen = torch.zeros(vocab, dtype=torch.bool) if penalised else None
        if self.seen is not None:
            self.seen[list(admission.prompt)] = True
        self.matcher = new_matcher(p.structure) if p.structure else None
        self.output = 0
        for token in admission.generated:
            self.went_on(token)

    @property
    def plain(self) -> bool:
        """Whether nothing but temperature and the like is asked for, whatever came before."""
        return self.counts is None and self.matcher is None and not self.params.logit_bias and self.output >= self.params.min_tokens

    def adjust(self, logits: Tensor) -> None:  # [V], in place
        """Penalties (repetition: Keskar et al., CTRL, 2019, section 4.1; the others: OpenAI's API), bias, and what must not come."""
        p = self.params
        if self.counts is not None and self.seen is not None:
            seen, came = self.seen.nonzero().flatten(), self.counts.nonzero().flatten()
            old, counts = logits[seen], self.counts[came]
            logits[seen] = torch.where(old > 0, old / p.repetition_penalty, old * p.repetition_penalty)
            logits[came] -= p.frequency_penalty * counts + p.presence_penalty
        for token, bias in p.logit_bias:
            logits[token] += bias
        if self.output < p.min_tokens:
            logits[self.end_tokens] = -torch.inf
        if self.matcher:
            self.matcher.forbid(logits)

    def went_on(self, token: int) -> None:
        """A token has become part of the output."""
        self.output += 1
        if self.counts is not None and self.seen is not None:
            self.counts[token] += 1
            self.seen[token] = True
        if self.matcher:
            self.matcher.accept(token)


class Sampler:
    """Sequences go by the engine's numbers."""

    def __init__(self, vocab: int, new_matcher: NewMatcher):
        self._vocab, self._new_matcher = vocab, new_matcher
        self._known: dict[int, _Known] = {}

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Sequences that appear for the first time."""
        for admission in admissions:
            self._known[admission.number] = _Known(admission, self._vocab, self._new_matcher)

    def forget(self, numbers: Iterable[int]) -> None:
        """Sequences that have ended."""
        for number in numbers:
            self._known.pop(number, None)

    def sample(self, logits: Tensor, due: Sequence[Due]) -> list[Sampled]:  # [R, V]; R = sum of 1 + drafts
        """The next tokens of each sequence, in the order of `due`."""
        logits = logits.float()
        counts = [1 + len(d.drafts) for d in due]
        first = [0, *accumulate(counts)][:-1]
        known = [self._known[d.number] for d in due]
        drawn = self._draw_plain(logits, known, counts, first)
        return [
            self._one(logits[a : a + n], d, k, drawn.get(i))
            for i, (a, n, d, k) in enumerate(zip(first, counts, due, known, strict=True))
        ]

    def _draw_plain(self, logits: Tensor, known: Sequence[_Known], counts: Sequence[int], first: Sequence[int]) -> dict[int, list[int]]:
        """All rows at once of those sequences whose rows do not depend on one another."""
        plain = [i for i, k in enumerate(known) if k.plain]
        if not plain:
            return {}
        rows = [first[i] + j for i in plain for j in range(counts[i])]
        params = [known[i].params for i in plain for _ in range(counts[i])]
        places = [known[i].output + j for i in plain for j in range(counts[i])]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        tokens = iter(draw(chosen, params, uniforms([p.seed or 0 for p in params], places)))
        return {i: [next(tokens) for _ in range(counts[i])] for i in plain}

    def _one(self, logits: Tensor, due: Due, known: _Known, drawn: list[int] | None) -> Sampled:
        """Follow the drafts as far as they are right."""
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        for row in range(1 + len(due.drafts)):
            token = drawn[row] if drawn is not None else _drawn(logits[row], known)
            if known.params.logprobs is not None:
                logprobs.append(_logprob(logits[row], token, known.params.logprobs))
            known.went_on(token)
            tokens.append(token)
            if row == len(due.drafts) or token != due.drafts[row]:
                break
        return Sampled(tuple(tokens), tuple(logprobs) if known.params.logprobs is not None else None)


def _drawn(logits: Tensor, known: _Known) -> int:  # [V]
    """A token of a sequence whose logits depend on what came before."""
    adjusted = logits.clone()
    known.adjust(adjusted)
    return draw(adjusted[None], [known.params], uniforms([known.params.seed or 0], [known.output]))[0]


def _logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:  # [V]
    """As the model gives it, before temperature and penalties."""
    every = logits.double().log_softmax(-1)
    best = every.topk(top) if top else None
    pairs = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best else ()
    return TokenLogprob(every[token].item(), pairs)
