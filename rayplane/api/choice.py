"""One continuation as its reader sees it: tokens come in, text with what belongs to it is taken out.

Progress ──▶ detokenise ──▶ stop strings ──▶ pending ──take──▶ Delta

What is pending grows while the reader is slow, and is then taken as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rayplane.api.detokenize import Detokenizer
from rayplane.api.errors import ApiError
from rayplane.api.metrics import Stopwatch
from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.request import FinishReason
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.stops import StopStrings
from rayplane.serve.wire import Progress

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token with its logprob."""

    id: int
    scored: TokenLogprob


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of a continuation."""

    text: str
    tokens: Sequence[ScoredToken] = ()
    """Where logprobs were asked for."""
    finish: Finish | None = None
    stop_reason: int | str | None = None


class Choice:
    """A flight's sink. `wake` is called when there is something to take."""

    def __init__(
        self, params: SamplingParams, decoder: Detokenizer, stops: StopStrings, stopwatch: Stopwatch, wake: Callable[[], None]
    ):
        self._params, self._decoder, self._stops, self._stopwatch, self._wake = params, decoder, stops, stopwatch, wake
        self._texts: list[str] = []
        self._scored: list[ScoredToken] = []
        self._taken = self._cancelled = False
        self.num_tokens = 0
        self.cached = 0
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self.error: ApiError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.finish is not None or self.error is not None or self._cancelled

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._texts or self._scored) or (self.ended and not self._taken)

    def take(self) -> Delta:
        """All that has come since the last time. Raises the ApiError that ended it."""
        if self.error:
            raise self.error
        text, scored = "".join(self._texts), self._scored
        self._texts, self._scored, self._taken = [], [], self.finish is not None
        return Delta(text, scored, self.finish, self.stop_reason)

    def placed(self, replica: str) -> None:
        """A replica has it."""
        self._stopwatch.placed(replica)

    def started(self, cached: int, queued_s: float) -> None:
        """The replica has begun."""
        self.cached = max(self.cached, cached)
        self._stopwatch.started(cached)

    def progress(self, progress: Progress) -> None:
        """Tokens have come, or the end."""
        if self.ended:
            return
        if progress.finish is FinishReason.DEADLINE:
            self.failed(ApiError(504, f"the deadline passed after {self.num_tokens} tokens", code="deadline"))
            return
        tokens = progress.tokens
        if tokens:
            count = self._read(tokens, progress.finish)
            self._stopwatch.tokens(count)
            self._scored += map(ScoredToken, tokens[:count], (progress.logprobs or ())[:count])
        if self._stops.found is None and progress.finish and (rest := self._rest()):
            self._texts.append(rest)
        if self._stops.found is not None:
            self._end("stop", self._stops.found)
        elif progress.finish is FinishReason.STOP:
            self._end("stop", tokens[-1] if tokens else None)
        elif progress.finish:
            self._end("length", None)
        self._wake()

    def failed(self, error: ApiError) -> None:
        """There will be no more tokens."""
        if not self.ended:
            self.error = error
            self._stopwatch.ended(str(error.status))
            self._wake()

    def cancelled(self) -> None:
        """Nobody waits any more."""
        if not self.ended:
            self._cancelled = self._taken = True
            self._stopwatch.ended("cancelled")
            self._wake()

    def _spoken(self, tokens: tuple[int, ...], finish: FinishReason | None) -> tuple[int, ...]:
        """Those that are text: a stop token is not."""
        stopped = finish is FinishReason.STOP and tokens[-1] in self._params.stop_tokens
        return tokens[:-1] if stopped and not self._params.include_stop else tokens

    def _read(self, tokens: tuple[int, ...], finish: FinishReason | None) -> int:
        """Take in their text; how many belong to the answer, which a stop string may end within a step of several tokens."""
        before = self.num_tokens
        for number, token in enumerate(self._spoken(tokens, finish), before + 1):
            text = self._decoder.push((token,))
            if number > self._params.min_tokens:  # up to there stop strings are text like any other
                text = self._stops.push(text)
            if text:
                self._texts.append(text)
            if self._stops.found is not None:
                self.num_tokens = number
                return number - before
        self.num_tokens += len(tokens)
        return len(tokens)

    def _rest(self) -> str:
        """What was held back, at the end."""
        rest = self._stops.push(self._decoder.finish())
        return rest if self._stops.found is not None else rest + self._stops.finish()

    def _end(self, how: Finish, reason: int | str | None) -> None:
        self.finish, self.stop_reason = how, reason
        self._stopwatch.ended(how)
