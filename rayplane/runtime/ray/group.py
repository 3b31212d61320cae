"""All ranks of a job on a Ray cluster: a placement group with one bundle per Slot, a StageActor in each.

start    reserve places (kept from the last start if they still stand) ──▶ StageActors ──▶ their ranks
recall   ranks park, actors that answer stay; the next start replaces what is missing, each actor in its own bundle
poll     one outstanding next_messages call per actor; an actor or node that is lost becomes a "lost" of each of its ranks
kill     ranks and actors die, places stay          close    places go too
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import placement_group_table, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.runtime.group import Launch, Message, RankMessage
from rayplane.runtime.patience import Patience, never
from rayplane.runtime.ray.actor import light_actor, stage_actor
from rayplane.runtime.ray.calls import answers
from rayplane.runtime.ray.cluster import node_ids
from rayplane.runtime.ray.deal import Hand, deal
from rayplane.runtime.ray.exporters import Exporters
from rayplane.runtime.ray.places import USUAL, Ask, OnBound, Reserved, Terms, as_planned, reserve
from rayplane.runtime.ray.retained import retained
from rayplane.runtime.ray.stage import Stage, silent
from rayplane.runtime.rendezvous import START_TIMEOUT_S, Lobby, Orders
from rayplane.spec.plan import Placement

log = logging.getLogger(__name__)


class RayGroup:
    """A WorkerGroup on the connected Ray cluster."""

    def __init__(
        self,
        exporters: Exporters | None = None,
        wait_s: float = 600.0,
        start_timeout_s: float = START_TIMEOUT_S,
        terms: Terms = USUAL,
        on_bound: OnBound = as_planned,
    ):
        """`exporters` are told of every step. `wait_s`: how long to wait for places that others use. `on_bound` is told where stages
        go when that is not where they were planned.
        """
        self._exporters = exporters
        self._wait_s = wait_s
        self._start_timeout_s = start_timeout_s
        self._terms, self._on_bound = terms, on_bound
        self._places: Reserved | None = None
        self._placed: tuple[Placement, tuple[str, int]] | None = None
        self._stages: list[Stage] = []
        self._lobby: Lobby | None = None
        self._recalled = False

    @property
    def actor_pids(self) -> list[int]:
        """Process ids of the stage actors, each on its own node."""
        return [s.site.pid for s in self._stages if s.site]

    def start(self, launch: Launch, give_up: Callable[[], bool] = never) -> None:
        """Reserve, create the actors and spawn the ranks; what was begun is undone when that fails."""
        try:
            if not (self._recalled and self._retain(launch)):
                self.kill()
                self._stages = self._placed_stages(launch, give_up) if launch.cores else _light_stages(launch)
            self._recalled = False
            self._meet(launch, give_up)
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

    def recall(self, timeout_s: float, gone: frozenset[int] = frozenset()) -> frozenset[int]:
        """End the attempt but not its processes; the ranks that have parked in time. Stage actors that answer are kept with them."""
        if not self._lobby:
            return frozenset()
        self._recalled = True
        first = self._discard(gone)
        living = frozenset(rank for s in self._stages if s.pending is not None for rank in s.slot.ranks if rank not in s.ended)
        parked = self._lobby.recall(living - gone, timeout_s)
        self._leave([*silent(first), *(s for s in self._stages if s.pending is None)])
        self._leave(silent(self._discard(self._ranks - parked)))
        return parked & self._ranks

    def kill(self) -> None:
        """SIGKILL every rank, then the actors; on return none is left. The places are kept."""
        self._recalled = False
        self._end(self._stages)

    def close(self) -> None:
        """Kill and give the places back."""
        self.kill()
        self._release()

    @property
    def _ranks(self) -> frozenset[int]:
        return frozenset(rank for stage in self._stages for rank in stage.slot.ranks)

    def _discard(self, ranks: frozenset[int]) -> dict[Any, Stage]:
        return {s.actor.discard.remote(mine): s for s in self._stages if (mine := ranks.intersection(s.slot.ranks))}

    def _end(self, stages: Sequence[Stage]) -> None:
        """SIGKILL the ranks of some stages, then their actors."""
        silent({stage.actor.kill.remote(): stage for stage in stages})
        self._leave(stages)

    def _leave(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            ray.kill(stage.actor)
        self._stages = [s for s in self._stages if s not in stages]

    def _retain(self, launch: Launch) -> bool:
        """Keep the actors for which the launch has a place, and make those that are missing; False when it needs other places."""
        if not (launch.cores and self._places and self._placed and self._placed[1] == _by(launch)):
            return False
        bundles = retained(launch.placement.slots, self._placed[0].slots, self._places.bound.placement.slots)
        standing = {s.bundle: s for s in self._stages}
        if bundles is None or not (standing.keys() >= set(bundles) or self._are_whole(self._places)):
            return False
        self._end([s for s in self._stages if s.bundle not in bundles])
        self._stages = [standing.get(i) or self._stage(launch, self._places, i) for i in bundles]
        for stage, slot in zip(self._stages, launch.placement.slots, strict=True):
            stage.slot = replace(slot, node=stage.slot.node, island=stage.slot.island)
        return True

    def _stage(self, launch: Launch, places: Reserved, bundle: int) -> Stage:
        slot = places.bound.placement.slots[bundle]
        return Stage(slot, stage_actor(slot, *_by(launch), places.group, bundle), bundle)

    def _are_whole(self, places: Reserved) -> bool:
        return bool(placement_group_table(places.group)["state"] == "CREATED")

    def _reserve(self, launch: Launch, give_up: Callable[[], bool]) -> Reserved:
        placed = (launch.placement, _by(launch))
        if self._places and self._placed == placed and self._are_whole(self._places):
            return self._places
        self._release()
        ask = Ask(launch.name, launch.layout, launch.placement, *_by(launch), self._terms)
        self._places = reserve(ask, Patience(self._wait_s, give_up))
        self._placed = placed
        if self._places.bound.placement != launch.placement:
            self._on_bound(launch, self._places.bound)
        return self._places

    def _release(self) -> None:
        if self._places:
            remove_placement_group(self._places.group)
        self._places = None

    def _placed_stages(self, launch: Launch, give_up: Callable[[], bool]) -> list[Stage]:
        places = self._reserve(launch, give_up)
        return [self._stage(launch, places, i) for i in range(len(places.bound.placement.slots))]

    def _meet(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        """Wait until every new actor is there."""
        new = [s for s in self._stages if s.site is None]
        sites = answers([s.actor.site.remote() for s in new], "every stage actor came up", give_up)
        for stage, site in zip(new, sites, strict=True):
            stage.site = site
            log.info("%s: replica %d stage %d on %s", launch.name, stage.slot.replica, stage.slot.stage, site.address)
            if self._exporters:
                stage.exporter = self._exporters.on(site.node_id, site.address)
        if self._exporters:
            self._exporters.wait(give_up)

    def _spawn(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        dealt = deal([Hand(s.slot.ranks, s.site.node_id, s.site.gpus) for s in self._stages if s.site])
        spawned = [s.start(launch, gpus) for s, gpus in zip(self._stages, dealt, strict=True)]
        parked = answers(spawned, "every stage actor spawned its ranks", give_up)
        sites = {rank: stage.site for stage in self._stages for rank in stage.slot.ranks if stage.site}
        addresses = tuple(sites[rank].address for rank in range(launch.layout.size))
        self._lobby = Lobby(launch, addresses, self._start_timeout_s, self._fetch, self._tell, frozenset().union(*parked))
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
        return [message for ref in ready for message in pending[ref].take()]


def _by(launch: Launch) -> tuple[str, int]:
    """The resource by which a launch takes its places, and how much of it a rank gets."""
    return ("GPU", 1) if launch.device == "cuda" else ("CPU", launch.cores)


def _light_stages(launch: Launch) -> list[Stage]:
    ids = node_ids()
    gone = sorted({slot.node for slot in launch.placement.slots if slot.node not in ids})
    if gone:
        raise PlacementError(f"node {', '.join(gone)} is not in the cluster any more")
    return [Stage(slot, light_actor(slot, ids[slot.node])) for slot in launch.placement.slots]
