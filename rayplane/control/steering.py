"""What a service should be, looked at once a second: so many replicas, cut so.

load ─▶ scale ─▶ Wanted          ─▶ relayout ─▶ the planner, on a thread of its own ─▶ LayoutWanted
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from dataclasses import replace

from rayplane.control.autoscale import Limits, Scaler, scale
from rayplane.control.load import Load
from rayplane.control.relayout import Ask, Mover, Offer, asked, better, moving, question, stayed, watched
from rayplane.control.service_state import LayoutWanted, MoveEnded, Service, ServiceEvent, Wanted
from rayplane.control.service_task import ServiceTask
from rayplane.control.way import Way
from rayplane.errors import RayplaneError

ROOM_S = 60.0
"""How long the cluster is taken to have no more room, once it had none."""

log = logging.getLogger(__name__)


class Steering:
    """Owned by the controller's thread."""

    def __init__(self, task: ServiceTask):
        self._task, self._way, self._ability = task, task.way, task.ability(task.way)
        self._scaler, self._mover = Scaler(task.replicas), Mover()
        self._room: tuple[int, float] | None = None
        """Replicas that the cluster has room for, and until when that is believed; None: as many as there may be."""
        self._toward: Way | None = None
        self._asking = False
        self._answers: queue.SimpleQueue[tuple[Way, Offer | None]] = queue.SimpleQueue()

    def look(self, service: Service, load: Load | None, now_s: float) -> list[ServiceEvent]:
        """What should change."""
        if service.way != self._way:
            self._way, self._ability, self._room = service.way, self._task.ability(service.way), None
            self._scaler = Scaler(service.wanted, changed_s=now_s)
        settled = service.move is None and all(replica.phase == "serving" for replica in service.replicas)
        limits = self._limits(now_s)
        scaler = replace(self._scaler, wanted=service.wanted)
        self._scaler = scale(scaler, load, len(service.replicas) if settled else -1, now_s, limits, self._ability.holds)
        if self._scaler.wanted != service.wanted:
            return [Wanted(self._scaler.wanted)]
        if self._task.ask is None:
            return []
        seen = load if settled and len(service.replicas) == service.wanted else None
        self._mover = watched(self._mover, seen, service.wanted >= limits.most, now_s, limits)
        return self._answered(service) or self._asked(self._task.ask, service.way, seen, now_s)

    def noted(self, before: Service, event: ServiceEvent) -> None:
        """An event that changed the service, which was so before."""
        now_s = time.monotonic()
        match event:
            case LayoutWanted(way) if way != before.way:
                self._toward, self._mover = way, moving(self._mover, before.way, way, now_s)
            case MoveEnded(way, reason) if reason and way == self._toward:
                self._mover = stayed(self._mover, now_s)

    def bounded(self, event: LayoutWanted) -> ServiceEvent:
        """A wish from outside as far as the job and the cluster allow it."""
        try:
            limits = self._task.ability(event.way).limits
        except RayplaneError as error:
            return MoveEnded(event.way, str(error))
        return replace(event, replicas=min(max(event.replicas, limits.least), limits.most))

    def no_room(self, replicas: int) -> Wanted:
        """There is room for so many only, for now."""
        self._room = (replicas, time.monotonic() + ROOM_S)
        return Wanted(replicas)

    def _limits(self, now_s: float) -> Limits:
        limits = self._ability.limits
        if self._room and now_s >= self._room[1]:
            self._room = None
        most = min(limits.most, self._room[0]) if self._room else limits.most
        return replace(limits, most=most, least=min(limits.least, most))

    def _asked(self, ask: Ask, way: Way, load: Load | None, now_s: float) -> list[ServiceEvent]:
        """Have the planner search, where it is time to."""
        if load is None or self._asking or (about := question(self._mover, load, now_s)) is None:
            return []
        self._mover, self._asking = asked(self._mover, now_s), True
        threading.Thread(target=self._ask, args=(ask, about, way), name="relayout", daemon=True).start()
        return []

    def _ask(self, ask: Ask, load: Load, way: Way) -> None:
        offer: Offer | None = None
        try:
            offer = ask(load, way)
        except Exception:
            log.exception("%s: the planner failed", self._task.name)
        finally:
            self._answers.put((way, offer))

    def _answered(self, service: Service) -> list[ServiceEvent]:
        with suppress(queue.Empty):
            way, offer = self._answers.get_nowait()
            self._asking = False
            if offer and way == service.way and better(self._mover, offer, way):
                return [self.bounded(LayoutWanted(offer.way, offer.replicas))]
        return []
