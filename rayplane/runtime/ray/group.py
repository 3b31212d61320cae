"""All ranks of a job on a Ray cluster: a placement group with one bundle per Slot, a StageActor in each.

start    reserve places (kept from the last start if they still stand) ──▶ StageActors ──▶ their ranks
poll     one outstanding next_messages call per actor; an actor or node that is lost becomes a "lost" of each of its ranks
kill     ranks and actors die, places stay          close    places go too
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.runtime.group import Launch, Message, RankMessage
from rayplane.runtime.patience import Patience, never
from rayplane.runtime.ray.actor import Site, end_process, light_actor, stage_actor
from rayplane.runtime.ray.calls import answers, brief
from rayplane.runtime.ray.cluster import living_nodes, node_ids, reserve
from rayplane.runtime.ray.exporters import Exporters
from rayplane.runtime.rendezvous import START_TIMEOUT_S, Lobby, Orders
from rayplane.spec.plan import Placement, Slot

LONG_POLL_S = 10.0
PROBE_S = 2.0
"""An actor that does not answer for so long is taken for dead."""
END_ACTOR_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Stage:
    """A slot, its actor, and how far its messages have been read."""

    slot: Slot
    actor: Any
    site: Site | None = None
    exporter: Any = None
    """The exporter of its node, or None."""
    pending: Any = None
    """The outstanding next_messages call; None once the actor is lost."""
    num_seen: int = 0
    ended: set[int] = field(default_factory=set)
    """Ranks whose end is known."""

    def listen(self) -> None:
        """Ask for what comes next."""
        self.pending = self.actor.next_messages.remote(self.num_seen, LONG_POLL_S)


class RayGroup:
    """A WorkerGroup on the connected Ray cluster."""

    def __init__(self, exporters: Exporters | None = None, wait_s: float = 600.0, start_timeout_s: float = START_TIMEOUT_S):
        """`exporters` are told of every step. `wait_s`: how long to wait for places that others use."""
        self._exporters = exporters
        self._wait_s = wait_s
        self._start_timeout_s = start_timeout_s
        self._places: PlacementGroup | None = None
        self._placed: tuple[Placement, str] | None = None
        self._stages: list[Stage] = []
        self._lobby: Lobby | None = None

    @property
    def actor_pids(self) -> list[int]:
        """Process ids of the stage actors, each on its own node."""
        return [s.site.pid for s in self._stages if s.site]

    def start(self, launch: Launch, give_up: Callable[[], bool] = never) -> None:
        """Reserve, create the actors and spawn the ranks; what was begun is undone when that fails."""
        self.kill()
        try:
            self._create(launch, give_up)
            self._spawn(launch, give_up)
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """Messages that have come, waiting up to `timeout_s` for the first."""
        assert self._lobby, "poll comes after start"
        return self._lobby.poll(timeout_s)

    def send(self, message: Message) -> None:
        """Hand a message to every rank that lives."""
        for stage in self._stages:
            stage.actor.broadcast.remote(message)

    def kill(self) -> None:
        """SIGKILL every rank, then the actors; on return none is left. The places are kept."""
        stages, self._stages = self._stages, []
        calls = {stage.actor.kill.remote(): stage for stage in stages}
        if not calls:
            return
        _, silent = ray.wait(list(calls), num_returns=len(calls), timeout=PROBE_S)
        if stuck := [end_process(site) for call in silent if (site := calls[call].site)]:
            ray.wait(stuck, num_returns=len(stuck), timeout=END_ACTOR_S)
        for stage in stages:
            ray.kill(stage.actor)

    def close(self) -> None:
        """Kill and give the places back."""
        self.kill()
        self._release()

    def _reserve(self, launch: Launch, resource: str, each: int, give_up: Callable[[], bool]) -> PlacementGroup:
        placed = (launch.placement, f"{each} {resource}")
        if self._places and self._placed == placed and placement_group_table(self._places)["state"] == "CREATED":
            return self._places
        self._release()
        self._places = reserve(f"rayplane-{launch.name}", launch.placement.slots, resource, each, Patience(self._wait_s, give_up))
        self._placed = placed
        return self._places

    def _release(self) -> None:
        if self._places:
            remove_placement_group(self._places)
        self._places = None

    def _create(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        self._stages = _light_stages(launch) if not launch.cores else self._placed_stages(launch, give_up)
        sites = answers([s.actor.site.remote() for s in self._stages], "every stage actor came up", give_up)
        for stage, site in zip(self._stages, sites, strict=True):
            stage.site = site
            log.info("%s: replica %d stage %d on %s", launch.name, stage.slot.replica, stage.slot.stage, site.address)
            if self._exporters:
                stage.exporter = self._exporters.on(site.node_id, site.address)
        if self._exporters:
            self._exporters.wait(give_up)

    def _placed_stages(self, launch: Launch, give_up: Callable[[], bool]) -> list[Stage]:
        resource, each = ("GPU", 1) if launch.device == "cuda" else ("CPU", launch.cores)
        places = self._reserve(launch, resource, each, give_up)
        return [Stage(slot, stage_actor(slot, resource, each, places, i)) for i, slot in enumerate(launch.placement.slots)]

    def _spawn(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        spawned = [s.actor.start.remote(launch, s.exporter) for s in self._stages]
        answers(spawned, "every stage actor spawned its ranks", give_up)
        sites = {rank: stage.site for stage in self._stages for rank in stage.slot.ranks if stage.site}
        addresses = tuple(sites[rank].address for rank in range(launch.layout.size))
        self._lobby = Lobby(launch, addresses, self._start_timeout_s, self._fetch, self._tell)
        for stage in self._stages:
            stage.listen()

    def _tell(self, orders: Orders) -> None:
        for stage in self._stages:
            if mine := tuple(order for order in orders if order[0] in stage.slot.ranks):
                stage.actor.send.remote(mine)

    def _fetch(self, timeout_s: float) -> list[RankMessage]:
        pending = {s.pending: s for s in self._stages if s.pending is not None}
        if not pending:
            time.sleep(timeout_s)
            return []
        if not ray.wait(list(pending), num_returns=1, timeout=timeout_s)[0]:
            return []
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        return [message for ref in ready for message in _take(pending[ref])]


def _light_stages(launch: Launch) -> list[Stage]:
    ids = node_ids()
    gone = sorted({slot.node for slot in launch.placement.slots if slot.node not in ids})
    if gone:
        raise PlacementError(f"node {', '.join(gone)} is not in the cluster any more")
    return [Stage(slot, light_actor(slot, ids[slot.node])) for slot in launch.placement.slots]


def _take(stage: Stage) -> list[RankMessage]:
    """The answer of a stage's actor, or what its loss means for its ranks."""
    try:
        messages: list[RankMessage] = ray.get(stage.pending)
    except ActorUnavailableError as error:
        if _answers(stage.actor):
            stage.listen()
            return []
        return _lost(stage, error)
    except RayError as error:
        return _lost(stage, error)
    stage.num_seen += len(messages)
    stage.ended |= {m.rank for m in messages if m.message["type"] == "exit"}
    stage.listen()
    return messages


def _lost(stage: Stage, error: RayError) -> list[RankMessage]:
    stage.pending = None
    message = {"type": "lost", "reason": _why_lost(stage, error)}
    return [RankMessage(rank, message) for rank in stage.slot.ranks if rank not in stage.ended]


def _why_lost(stage: Stage, error: RayError) -> str:
    if stage.site is None:
        return f"its stage actor is lost: {brief(error)}"
    place = f"{stage.slot.node} ({stage.site.address})" if stage.slot.node else stage.site.address
    if stage.site.node_id not in {node["NodeID"] for node in living_nodes()}:
        return f"its node {place} is lost"
    if isinstance(error, ActorUnavailableError):
        return f"its node {place} does not answer: it is down, or cannot be reached"
    return f"its stage actor on {place} is lost: {brief(error)}"


def _answers(actor: Any) -> bool:
    try:
        ray.get(actor.site.remote(), timeout=PROBE_S)
    except RayError:
        return False
    return True
