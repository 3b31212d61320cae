"""The end of each stage's compute under 1f1b and gpipe, without making a single Action: the rule of `order`, written out for these two.

stage   warm-up       rounds of one forward and one backward        drain
0       F0 F1         F2 B0 | F3 B1 | …                             B B
2                     F0 B0 | F1 B1 | …       once a round repeats the last one, moved in time, the rest is multiplied
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rayplane.plan.step.pipe import Pipe


def one_f_one_b(pipe: Pipe, part: Sequence[float]) -> list[float]:
    """Ends of the stages under `spec.builders.one_f_one_b`, in rounds of one forward and one backward on every stage.

    `part` is the size of each microbatch as a share of a full one; all but the last are 1.
    """
    state, warmup, m = _warm_up(pipe, part), min(len(pipe.forward_s) - 1, len(part)), len(part)
    history = deque([state.snapshot()], maxlen=len(pipe.forward_s) + 1)
    k, last_even = 0, m - 1 - warmup
    while k < m:
        _round(pipe, part, state, k)
        k += 1
        if k <= last_even:
            history.append(state.snapshot())
            if k % len(pipe.forward_s) == 0:
                period, period_s = _period(history)
                repeats = (last_even - k) // period if period else 0
                state.shift(repeats * period_s)
                k += repeats * period
    return state.end


@dataclass(slots=True)
class _State:
    """Per stage: end of the last compute Action, of the one before it, and of the last forward."""

    end: list[float]
    before: list[float]
    forward: list[float]

    def snapshot(self) -> tuple[float, ...]:
        """All that the next round depends on."""
        return (*self.end, *self.before, *self.forward)

    def shift(self, seconds: float) -> None:
        """Move everything in time."""
        if seconds:
            self.end, self.before, self.forward = ([t + seconds for t in times] for times in (self.end, self.before, self.forward))


def _warm_up(pipe: Pipe, part: Sequence[float]) -> _State:
    """The forwards before a stage's first backward: one for each stage behind it."""
    p = len(pipe.forward_s)
    state = _State([0.0] * p, [0.0] * p, [0.0] * p)
    source: list[float | None] = [None] * len(part)
    for s in range(p):
        hop_s = pipe.p2p_s[s - 1] if s else 0.0
        ends = [
            _run(state.end, state.before, s, pipe.forward_s[s] * part[j], source[j], hop_s * part[j])
            for j in range(min(p - 1 - s, len(part)))
        ]
        state.forward[s] = ends[-1] if ends else 0.0
        source = [*ends]
    return state


def _round(pipe: Pipe, part: Sequence[float], state: _State, k: int) -> None:
    """Backward k of every stage from the last to the first, each after the forward whose turn it is."""
    p, gradient = len(pipe.forward_s), None
    for s in range(p - 1, -1, -1):
        j = k + p - 1 - s
        if j < len(part):
            hop_s, source = (pipe.p2p_s[s - 1], state.forward[s - 1]) if s else (0.0, None)
            state.forward[s] = _run(state.end, state.before, s, pipe.forward_s[s] * part[j], source, hop_s * part[j])
        hop_s = pipe.p2p_s[s] * part[k] if s < p - 1 else 0.0
        gradient = _run(state.end, state.before, s, pipe.backward_s[s] * part[k], gradient, hop_s)


def _period(history: Sequence[tuple[float, ...]]) -> tuple[int, float]:
    """(rounds, seconds) after which the pipe repeats itself, moved in time; (0, 0) when it does not yet.

    A round depends on the state before it only through maxima and sums, so once a state recurs shifted, all that follows does.
    """
    now = history[-1]
    for rounds in range(1, len(history)):
        then = history[-1 - rounds]
        seconds = now[0] - then[0]
        if all(abs(a - b - seconds) <= 1e-12 * a for a, b in zip(now, then, strict=True)):
            return rounds, seconds
    return 0, 0.0


def gpipe(pipe: Pipe, part: Sequence[float]) -> list[float]:
    """Ends of the stages under `spec.builders.gpipe`: all forwards, then all backwards."""
    p = len(pipe.forward_s)
    end, before = [0.0] * p, [0.0] * p
    hop_s = (0.0, *pipe.p2p_s, 0.0)
    source: list[float | None] = [None] * len(part)
    for s in range(p):
        source = [_run(end, before, s, pipe.forward_s[s] * a, up, hop_s[s] * a) for up, a in zip(source, part, strict=True)]
    source = [None] * len(part)
    for s in range(p - 1, -1, -1):
        source = [_run(end, before, s, pipe.backward_s[s] * a, down, hop_s[s + 1] * a) for down, a in zip(source, part, strict=True)]
    return end


RECURRENCES: Mapping[str, Callable[[Pipe, Sequence[float]], list[float]]] = {"1f1b": one_f_one_b, "gpipe": gpipe}
"""By the name of the schedule."""


def _run(end: list[float], before: list[float], s: int, seconds: float, source: float | None, transfer: float) -> float:
    """One compute Action of stage s; `before` is the end of the last but one Action, when its receive was posted."""
    start = now = end[s]
    if source is not None:
        arrival = (source if source > before[s] else before[s]) + transfer
        start = arrival if arrival > now else now
    before[s] = now
    end[s] = start = start + seconds
    return start
