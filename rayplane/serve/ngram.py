"""Guesses of the next tokens by looking the last few up in what was said before (prompt lookup decoding, A. Saxena, 2023).

tokens   the cat sat on the mat . the cat     the last two, "the cat", stood before
drafts   sat on the mat                       what followed them there, num_drafts = 4
tokens   a b a b                              "a b" stood before, two tokens ago
drafts   a b a b                              a text that repeats itself goes on repeating itself

The longest n-gram that ends the text and stood in it before counts, n from `longest` down to `shortest`; of several places the latest.
Guesses change no text, only its pace: each is kept where the model would have chosen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Gram = tuple[int, ...]


@dataclass(slots=True)
class PromptLookup:
    """An index of one sequence's n-grams that grows with it, of its last `window` tokens, so that memory is bounded."""

    longest: int = 3
    shortest: int = 2
    window: int = 4096
    _next: dict[Gram, int] = field(default_factory=dict)
    """n-gram → place of the token after it, the latest one."""
    _end: int = 0
    """Places before this one have been indexed."""

    def propose(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        """At most `num_drafts` tokens that may follow `tokens`, which from call to call only grow."""
        if num_drafts <= 0:
            return []
        self._catch_up(tokens)
        end = len(tokens)
        for n in range(min(self.longest, end), self.shortest - 1, -1):
            place = self._next.get(tuple(tokens[end - n :]))
            if place is not None:
                period = end - place
                return [tokens[place + i % period] for i in range(num_drafts)]
        return []

    def _catch_up(self, tokens: Sequence[int]) -> None:
        end, oldest = len(tokens), len(tokens) - self.window
        for place in range(max(self._end, oldest, self.shortest), end):
            for n in range(self.shortest, min(self.longest, place) + 1):
                self._next[tuple(tokens[place - n : place])] = place
        for place in range(max(0, self._end - self.window), min(self._end, oldest)):
            for n in range(self.shortest, min(self.longest, place) + 1):
                gram = tuple(tokens[place - n : place])
                if self._next.get(gram) == place:
                    del self._next[gram]
        self._end = end
