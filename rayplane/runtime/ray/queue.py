"""Who waits for places on a cluster, in the order in which they get them: by priority, then by arrival.

Each waiting job holds a ticket: a placement group that takes next to nothing of the head node, and whose name says the rest.

    placement groups      rayplane-waits {"job": "big", "priority": 5, "since_ns": …}      first of its resource: it may place
                          rayplane-waits {"job": "small", "priority": 0, …}                "waits in place 2 of 2 (behind big …"

Ray itself removes the tickets of a driver that died, and everybody sees the same ones: there is no server to keep.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from rayplane.errors import RayplaneError

PREFIX = "rayplane-waits "
HEAD = {"node:__internal_head__": 0.0001}
"""Of the head node's own resource, which nothing else uses: the smallest part that Ray counts."""
TICKET_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job that waits."""

    job: str
    priority: int
    since_ns: int
    """Unix time of arrival."""
    resource: str
    needs: str
    key: str
    """Tells tickets apart."""

    @property
    def order(self) -> tuple[int, int, str]:
        """Where it stands."""
        return -self.priority, self.since_ns, self.key

    @property
    def name(self) -> str:
        """Of its placement group."""
        return PREFIX + json.dumps(asdict(self))


def ticket_of(job: str, priority: int, resource: str, needs: str) -> Ticket:
    """A new one, as of now."""
    return Ticket(job, priority, time.time_ns(), resource, needs, uuid.uuid4().hex[:8])


def tickets(names: Iterable[str]) -> list[Ticket]:
    """Those among the names of placement groups, first come first."""
    found = [Ticket(**json.loads(name.removeprefix(PREFIX))) for name in names if name.startswith(PREFIX)]
    return sorted(found, key=lambda ticket: ticket.order)


def line(mine: Ticket, waiting: Iterable[Ticket]) -> tuple[list[Ticket], int]:
    """(those before mine that want the same resource, how many wait for it with mine)."""
    rivals = [ticket for ticket in waiting if ticket.resource == mine.resource and ticket.key != mine.key]
    return [ticket for ticket in rivals if ticket.order < mine.order], len(rivals) + 1


def waiting() -> list[Ticket]:
    """Of the connected cluster."""
    return tickets(group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED")


@contextmanager
def queued(ticket: Ticket) -> Iterator[None]:
    """While inside, everybody sees that the ticket's job waits."""
    group = placement_group([HEAD], name=ticket.name)
    try:
        if not group.wait(TICKET_TIMEOUT_S):
            raise RayplaneError(f"the cluster's head node did not answer within {TICKET_TIMEOUT_S:g} s; look at its GCS log")
        yield
    finally:
        remove_placement_group(group)
