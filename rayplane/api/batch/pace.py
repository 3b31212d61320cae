"""How many requests to have at the service at a time: so many that every engine is full and a few wait, and no more.

| what is seen                               | what follows                                                    |
|--------------------------------------------|-----------------------------------------------------------------|
| hardly anything waits, all we may have are out | twice as many; after a 429 a sixteenth more                 |
| far more wait than have to                 | as many as run, and the spare ones                              |
| 429                                        | as many as were taken, and nothing new until Retry-After is over |
| the service cannot answer                  | nothing new for a moment                                        |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_OF_REPLICA = 16
MIN_SPARE = 8
SPARE_OF_RUNNING = 2
"""One waits for so many that run: answers often end together, and the places are to be filled at once."""
CAREFUL = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What /health says."""

    live: int
    """Replicas."""
    running: int
    """Requests, of whomever."""
    waiting: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How many at a time, and since when."""

    limit: int
    most: int
    steady: bool
    """Whether the user said how many: then what waits does not matter."""
    bold: bool = True
    """Whether nothing was refused yet."""
    resume_at_s: float = 0.0
    """Nothing is sent before."""

    def room(self, out: int, now_s: float) -> int:
        """How many more may go now, when so many are out."""
        return 0 if now_s < self.resume_at_s else max(0, self.limit - out)


def first_pace(concurrency: int | None, seen: Seen | None, most: int) -> Pace:
    """To begin with; `most`: what this machine can bear."""
    if concurrency is not None:
        return Pace(min(concurrency, most), min(concurrency, most), steady=True)
    return Pace(min(FIRST_OF_REPLICA * max(1, seen.live if seen else 1), most), most, steady=False)


def looked(pace: Pace, seen: Seen, out: int) -> Pace:
    """After a look at the service while so many are out."""
    spare = max(MIN_SPARE, seen.running // SPARE_OF_RUNNING)
    if seen.waiting * 2 < spare and out >= pace.limit:
        more = pace.limit if pace.bold else max(1, pace.limit // CAREFUL)
        return replace(pace, limit=min(pace.most, pace.limit + more))
    if seen.waiting > spare * 2 and not pace.steady:
        return replace(pace, limit=min(pace.limit, max(1, min(out, seen.running) + spare)))
    return pace


def refused(pace: Pace, out: int, now_s: float, after_s: float) -> Pace:
    """A request came back with 429; so many are still out."""
    return replace(paused(pace, now_s, after_s), limit=max(1, min(pace.limit, out)), bold=False)


def paused(pace: Pace, now_s: float, after_s: float) -> Pace:
    """The service cannot answer now."""
    return replace(pace, resume_at_s=max(pace.resume_at_s, now_s + after_s))
