"""A service as values: where it stands, what can happen to it, and what it may do.

Service ── Replica 0: serving, tp2      Replica 1: starting, tp2
        └─ Move: to tp2, from 2 replicas of 1 device each, which go on if that fails
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rayplane.control.way import Way

Phase = Literal["starting", "serving", "draining", "killing"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the model."""

    id: int
    """Counts up; a replica that replaces another has a new one."""
    phase: Phase
    address: str = ""
    way: Way = field(default_factory=Way)


@dataclass(frozen=True, slots=True)
class Back:
    """What a service was before it moved."""

    way: Way
    replicas: int


@dataclass(frozen=True, slots=True)
class Move:
    """Replicas of the service's way take the place of those of others."""

    back: Back | None
    """What goes on if none of the new ones comes to serve; None: that has happened, and it is on its way back."""
    leaving: int
    """Others that served when it began."""


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service stands."""

    replicas: tuple[Replica, ...] = ()
    wanted: int = 0
    started: int = 0
    """Replicas ever started, which is the next one's id."""
    failures: int = 0
    """Of replicas and ingresses, since one last came to serve."""
    stopping: bool = False
    ingress: bool = False
    """Whether the ingresses run."""
    ended: str | None = None
    """Why it ended; "" when it was stopped."""
    way: Way = field(default_factory=Way)
    """How replicas are cut that start now."""
    hold: bool = False
    """Whether the last replica that serves may leave for its successor; requests wait at the ingresses meanwhile."""
    move: Move | None = None
    moves: int = 0
    """That were made."""
    given_up: int = 0
    """That were not."""


# Events


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many replicas are to serve."""

    replicas: int


@dataclass(frozen=True, slots=True)
class LayoutWanted:
    """Replicas are to be cut so, and to be so many."""

    way: Way
    replicas: int


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """The service has come to this way, or has given it up for a reason."""

    way: Way
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlaceWanted:
    """A replica that is to start has no devices, and nothing is on its way out; it would have some if these were gone."""

    id: int
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaServing:
    """A replica is ready for requests."""

    id: int
    address: str


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """A replica cannot go on. `user`: trying again would fail again."""

    id: int
    reason: str
    user: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """No process of a replica is left: it was killed, or it has drained."""

    id: int


@dataclass(frozen=True, slots=True)
class IngressFailed:
    """The ingresses cannot go on."""

    reason: str
    user: bool = False


@dataclass(frozen=True, slots=True)
class IngressDone:
    """The ingresses have finished what ran, and ended."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """SIGTERM, Ctrl-C or `stop`."""


ServiceEvent = (
    Wanted
    | LayoutWanted
    | MoveEnded
    | PlaceWanted
    | ReplicaServing
    | ReplicaFailed
    | ReplicaGone
    | IngressFailed
    | IngressDone
    | StopAsked
)


# Effects


@dataclass(frozen=True, slots=True)
class StartIngress:
    """Start the ingresses, which listen at once and serve as soon as a replica does."""


@dataclass(frozen=True, slots=True)
class StopIngress:
    """Let the ingresses finish what runs and end; comes back as IngressDone."""


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Place and start a replica; comes back as ReplicaServing, ReplicaFailed or PlaceWanted."""

    id: int
    way: Way = field(default_factory=Way)


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Let a replica finish what runs; comes back as ReplicaGone."""

    id: int


@dataclass(frozen=True, slots=True)
class KillReplica:
    """Kill all of a replica's ranks and give its place back; comes back as ReplicaGone."""

    id: int


@dataclass(frozen=True, slots=True)
class Route:
    """Requests may go to these, and to no others."""

    replicas: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class TellMove:
    """A move has ended so; comes back as MoveEnded."""

    way: Way
    reason: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """Kill what is left, ingresses too, and end. Always the last effect of a service."""


ServiceEffect = StartIngress | StopIngress | StartReplica | DrainReplica | KillReplica | Route | TellMove | End
