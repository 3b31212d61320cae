"""All ranks of a job on a Ray cluster: a placement group with one bundle per Slot, a StageActor in each.

start    reserve places (kept from the last start if they still stand) ──▶ StageActors ──▶ their ranks
poll     one outstanding next_messages call per actor; an actor or node that is lost becomes an "exit" of each of its ranks
kill     ranks and actors die, places stay          close    places go too
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from rayplane.errors import RayplaneError
from rayplane.runtime.group import Launch, Message, RankMessage
from rayplane.runtime.process import exit_message
from rayplane.runtime.ray.actor import Site, end_process, node_exporter, stage_actor
from rayplane.runtime.ray.cluster import reserve
from rayplane.runtime.rendezvous import START_TIMEOUT_S, Lobby, Orders
from rayplane.spec.plan import Placement, Slot

LONG_POLL_S = 10.0
PROBE_S = 2.0
"""An actor that does not answer for so long is taken for dead."""
ACTOR_START_S = 60.0
END_ACTOR_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Stage:
    """A slot, its actor, and how far its messages have been read."""

    slot: Slot
    actor: Any
    site: Site | None = None
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

    def __init__(self, wait_s: float = 600.0, metrics_port: int | None = None, start_timeout_s: float = START_TIMEOUT_S):
        """`wait_s`: how long to wait for places that others use. `metrics_port`: on every node; 0: a free one, None: no metrics."""
        self._wait_s = wait_s
        self._metrics_port = metrics_port
        self._start_timeout_s = start_timeout_s
        self._places: PlacementGroup | None = None
        self._placed: tuple[Placement, str] | None = None
        self._stages: list[Stage] = []
        self._exporters: dict[str, Any] = {}
        self._targets: dict[str, str] = {}
        self._lobby: Lobby | None = None

    @property
    def metrics_targets(self) -> list[str]:
        """host:port of every node's exporter."""
        return sorted(self._targets.values())

    @property
    def actor_pids(self) -> list[int]:
        """Process ids of the stage actors, each on its own node."""
        return [s.site.pid for s in self._stages if s.site]

    def start(self, launch: Launch) -> None:
        """Reserve, create the actors and spawn the ranks; what was begun is undone when that fails."""
        self.kill()
        try:
            self._create(launch)
            self._spawn(launch)
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
        answers = {stage.actor.kill.remote(): stage for stage in stages}
        if not answers:
            return
        _, silent = ray.wait(list(answers), num_returns=len(answers), timeout=PROBE_S)
        if stuck := [end_process(site) for answer in silent if (site := answers[answer].site)]:
            ray.wait(stuck, num_returns=len(stuck), timeout=END_ACTOR_S)
        for stage in stages:
            ray.kill(stage.actor)

    def close(self) -> None:
        """Kill, end the exporters and give the places back."""
        self.kill()
        for exporter in self._exporters.values():
            ray.kill(exporter)
        self._exporters, self._targets = {}, {}
        self._release()

    def _reserve(self, launch: Launch, resource: str) -> PlacementGroup:
        placed = (launch.placement, resource)
        if self._places and self._placed == placed and placement_group_table(self._places)["state"] == "CREATED":
            return self._places
        self._release()
        self._places = reserve(f"rayplane-{launch.name}", launch.placement.slots, resource, self._wait_s)
        self._placed = placed
        return self._places

    def _release(self) -> None:
        if self._places:
            remove_placement_group(self._places)
        self._places = None

    def _create(self, launch: Launch) -> None:
        resource = "GPU" if launch.device == "cuda" else "CPU"
        places = self._reserve(launch, resource)
        self._stages = [Stage(slot, stage_actor(slot, resource, places, i)) for i, slot in enumerate(launch.placement.slots)]
        for stage, site in zip(self._stages, self._ask_all("came up", lambda s: s.actor.site.remote()), strict=True):
            stage.site = site
            log.info("%s: replica %d stage %d on %s", launch.name, stage.slot.replica, stage.slot.stage, site.address)
            self._export(launch.name, site)

    def _export(self, run: str, site: Site) -> None:
        if self._metrics_port is None or site.node_id in self._exporters:
            return
        exporter = self._exporters[site.node_id] = node_exporter(site.node_id, run, self._metrics_port)
        try:
            self._targets[site.node_id] = f"{site.address}:{ray.get(exporter.port.remote(), timeout=ACTOR_START_S)}"
        except RayError as error:
            raise RayplaneError(f"metrics.port {self._metrics_port} cannot be served on {site.address}: {error}") from error

    def _spawn(self, launch: Launch) -> None:
        sites = {rank: stage.site for stage in self._stages for rank in stage.slot.ranks if stage.site}
        self._ask_all("spawned its ranks", lambda s: s.actor.start.remote(launch, self._exporters.get(sites[s.slot.ranks[0]].node_id)))
        addresses = tuple(sites[rank].address for rank in range(launch.layout.size))
        self._lobby = Lobby(launch, addresses, self._start_timeout_s, self._fetch, self._tell)
        for stage in self._stages:
            stage.listen()

    def _ask_all(self, what: str, ask: Callable[[Stage], Any]) -> list[Any]:
        answers = [ask(stage) for stage in self._stages]
        try:
            return list(ray.get(answers, timeout=ACTOR_START_S))
        except GetTimeoutError as error:
            raise RayplaneError(f"not every stage actor {what} within {ACTOR_START_S:g} s") from error
        except RayError as error:
            raise RayplaneError(f"a stage actor failed before it {what}: {error}") from error

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


def _take(stage: Stage) -> list[RankMessage]:
    """The answer of a stage's actor, or what its loss means for its ranks."""
    try:
        messages: list[RankMessage] = ray.get(stage.pending)
    except ActorUnavailableError as error:
        if _answers(stage.actor):
            stage.listen()
            return []
        return _lost(stage, str(error))
    except RayError as error:
        return _lost(stage, str(error))
    stage.num_seen += len(messages)
    stage.ended |= {m.rank for m in messages if m.message["type"] == "exit"}
    stage.listen()
    return messages


def _lost(stage: Stage, reason: str) -> list[RankMessage]:
    stage.pending = None
    where = f"its stage actor on {stage.site.address} is lost: " if stage.site else ""
    return [RankMessage(rank, exit_message(-1, where + reason)) for rank in stage.slot.ranks if rank not in stage.ended]


def _answers(actor: Any) -> bool:
    try:
        ray.get(actor.site.remote(), timeout=PROBE_S)
    except RayError:
        return False
    return True
