"""From what a rank said to why the job failed: many ranks' errors become one line with the cause first.

rank 2 was killed by SIGKILL (then ranks 0, 1: Connection closed by peer)
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from rayplane.control.budget import REPLANNED
from rayplane.control.event import RankExited, RankFailed, RankLost, TimedOut
from rayplane.control.state import Failure

LOST_CONNECTION = (
    "connection closed",
    "connection reset",
    "connection refused",
    "connection aborted",
    "connection was likely closed",
    "broken pipe",
    "socket closed",
    "socket timeout",
    "remote process exited",
    "remote end closed",
    "closed its connection",
    "timed out waiting",
)
"""How gloo, NCCL and the store say that the other side is gone."""


def failure_of(event: RankFailed | RankExited | RankLost | TimedOut) -> Failure:
    """The failure that an event tells of."""
    match event:
        case RankFailed(rank, kind, message):
            lost = any(words in message.lower() for words in LOST_CONNECTION)
            return Failure((rank,), message, kind, consequence=lost and kind == "rank")
        case RankExited(rank, code, signum, log):
            return Failure((rank,), _exit_text(code, signum, log))
        case RankLost(rank, reason, kind):
            return Failure((rank,), reason, kind)
        case TimedOut(kind, ranks, waited_s, step):
            what = {
                "start": "not ready",
                "step": f"no step after step {step}",
                "end": "no end after the last step",
                "drain": "did not save",
            }[kind]
            return Failure(ranks, f"{what} within {waited_s:g} s")


def _exit_text(code: int, signum: int, log: str) -> str:
    if signum:
        return f"was killed by {_signal_name(signum)}"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    text = f"exited with code {code}" if code else "exited before its work was done"
    return f"{text}: {last}" if last else text


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def cause_of(failures: Sequence[Failure]) -> Failure:
    """The first that did not follow from another, with all ranks that its kind struck.

    A user's mistake comes before anything else, then what changed the devices.
    """
    (cause, *others), _ = _causes(failures)
    ranks = {rank for f in (cause, *others) if f.kind == cause.kind for rank in f.ranks}
    return replace(cause, ranks=tuple(sorted(ranks)))


def explain(failures: Sequence[Failure]) -> str:
    """One line: the cause, then what followed from it; ranks that say the same are named together."""
    causes, consequences = _causes(failures)
    first, *rest = _grouped([*causes, *consequences])
    return f"{first} (then {'; '.join(rest)})" if rest else first


def _causes(failures: Sequence[Failure]) -> tuple[list[Failure], list[Failure]]:
    causes = [f for f in failures if not f.consequence] or list(failures)
    causes = [f for f in causes if f.kind == "user"] or sorted(causes, key=lambda f: f.kind not in REPLANNED)
    chosen = set(map(id, causes))
    return causes, [f for f in failures if id(f) not in chosen]


def _grouped(failures: Sequence[Failure]) -> list[str]:
    ranks_by_message: dict[str, set[int]] = {}
    for failure in failures:
        ranks_by_message.setdefault(failure.message, set()).update(failure.ranks)
    return [_sentence(tuple(sorted(ranks)), message) for message, ranks in ranks_by_message.items()]


def _sentence(ranks: tuple[int, ...], message: str) -> str:
    if not ranks:
        return message
    verb_follows = message.startswith(("was ", "exited"))
    if len(ranks) == 1:
        return f"rank {ranks[0]}{'' if verb_follows else ':'} {message}"
    plural = message.replace("was ", "were ", 1) if message.startswith("was ") else message
    return f"ranks {', '.join(map(str, ranks))}{'' if verb_follows else ':'} {plural}"
