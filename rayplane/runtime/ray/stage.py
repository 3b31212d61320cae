"""A stage actor as its group sees it: what its ranks have said so far, and what its loss means.

start ──▶ listen ──▶ take: messages ──▶ listen …        the actor or its node is gone: a "lost" of each rank that had not ended
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from rayplane.runtime.group import Launch, RankMessage
from rayplane.runtime.ray.actor import Site, end_process
from rayplane.runtime.ray.calls import brief
from rayplane.runtime.ray.cluster import living_nodes, takes_connections
from rayplane.spec.plan import Slot

LONG_POLL_S = 10.0
PROBE_S = 2.0
"""An actor that does not answer for so long is taken for dead."""
END_ACTOR_S = 10.0


@dataclass(slots=True, eq=False)
class Stage:
    """A slot, its actor, and how far its messages have been read."""

    slot: Slot
    actor: Any
    bundle: int = 0
    """Of the group's places, which it fills."""
    site: Site | None = None
    exporter: Any = None
    """The exporter of its node, or None."""
    pending: Any = None
    """The outstanding next_messages call; None once the actor is lost."""
    attempt: int = 0
    """Counts the starts: what was said before the last one is not read any more."""
    num_seen: int = 0
    ended: set[int] = field(default_factory=set)
    """Ranks whose end is known."""

    def start(self, launch: Launch, gpus: tuple[str, ...]) -> Any:
        """Have the actor start its ranks: the call that gives those which keep their process."""
        self.attempt, self.num_seen, self.ended = self.attempt + 1, 0, set()
        return self.actor.start.remote(launch, self.slot, self.exporter, gpus, self.attempt)

    def listen(self) -> None:
        """Ask for what comes next."""
        self.pending = self.actor.next_messages.remote(self.attempt, self.num_seen, LONG_POLL_S)

    def take(self) -> list[RankMessage]:
        """The answer of the actor, or what its loss means for its ranks."""
        try:
            messages: list[RankMessage] = ray.get(self.pending)
        except ActorUnavailableError as error:
            if self._is_reachable() and _answers(self.actor):
                self.listen()
                return []
            return self._lost(error)
        except RayError as error:
            return self._lost(error)
        self.num_seen += len(messages)
        self.ended |= {m.rank for m in messages if m.message["type"] == "exit"}
        self.listen()
        return messages

    def _is_reachable(self) -> bool:
        """Whether its node may still answer; asking costs less than waiting for the actor."""
        nodes = [node for node in living_nodes() if self.site and node["NodeID"] == self.site.node_id]
        return not self.site or any(map(takes_connections, nodes))

    def _lost(self, error: RayError) -> list[RankMessage]:
        self.pending = None
        kind, reason = _why_lost(self, error)
        message = {"type": "lost", "reason": reason, "kind": kind}
        return [RankMessage(rank, message) for rank in self.slot.ranks if rank not in self.ended]


def silent(calls: Mapping[Any, Stage]) -> list[Stage]:
    """Wait for the answers to calls of actors: the stages whose actor gave none, and whose process is therefore killed."""
    if not calls:
        return []
    _, unanswered = ray.wait(list(calls), num_returns=len(calls), timeout=PROBE_S)
    if stuck := [end_process(site) for call in unanswered if (site := calls[call].site)]:
        ray.wait(stuck, num_returns=len(stuck), timeout=END_ACTOR_S)
    return [calls[call] for call in unanswered]


def _why_lost(stage: Stage, error: RayError) -> tuple[str, str]:
    """(node or rank, in words)."""
    if stage.site is None:
        return "rank", f"its stage actor is lost: {brief(error)}"
    place = f"{stage.slot.node} ({stage.site.address})" if stage.slot.node else stage.site.address
    if stage.site.node_id not in {node["NodeID"] for node in living_nodes()}:
        return "node", f"its node {place} is lost"
    if isinstance(error, ActorUnavailableError):
        return "node", f"its node {place} does not answer: it is down, or cannot be reached"
    return "rank", f"its stage actor on {place} is lost: {brief(error)}"


def _answers(actor: Any) -> bool:
    try:
        ray.get(actor.site.remote(), timeout=PROBE_S)
    except RayError:
        return False
    return True
