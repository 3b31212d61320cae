"""A service's decisions: which replicas to start, drain and kill, and where ingresses may send requests. No clock, no process.

| what happens                            | what follows                                                                         |
|-----------------------------------------|--------------------------------------------------------------------------------------|
| more replicas are wanted                | new ones start                                                                       |
| fewer are wanted                        | those still starting are killed first, then the newest drain: they finish what runs  |
| a replica serves                        | ingresses are told of it; failures are forgotten                                     |
| a replica fails                         | ingresses are told, it is killed, and another one starts in its place                |
| more than `restarts` in a row fail      | the service ends: none of them came to serve                                         |
| the user's mistake                      | the service ends with that message, whatever the budget                              |
| stop                                    | ingresses finish what runs and end, then replicas are killed                         |
| a second stop                           | all are killed                                                                       |
| an ingress fails                        | it starts again, within the same budget                                              |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["starting", "serving", "draining", "killing"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the model."""

    id: int
    """Counts up; a replica that replaces another has a new one."""
    phase: Phase
    address: str = ""


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


# Events


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many replicas are to serve."""

    replicas: int


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


ServiceEvent = Wanted | ReplicaServing | ReplicaFailed | ReplicaGone | IngressFailed | IngressDone | StopAsked


# Effects


@dataclass(frozen=True, slots=True)
class StartIngress:
    """Start the ingresses, which listen at once and serve as soon as a replica does."""


@dataclass(frozen=True, slots=True)
class StopIngress:
    """Let the ingresses finish what runs and end; comes back as IngressDone."""


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Place and start a replica; comes back as ReplicaServing or ReplicaFailed."""

    id: int


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
class End:
    """Kill what is left, ingresses too, and end. Always the last effect of a service."""


ServiceEffect = StartIngress | StopIngress | StartReplica | DrainReplica | KillReplica | Route | End
Answer = tuple[Service, tuple[ServiceEffect, ...]]


def decide(service: Service, event: ServiceEvent, restarts: int) -> Answer:
    """The next state and what to do. What comes after the end, or from a replica that is gone, changes nothing."""
    if service.ended is not None:
        return service, ()
    match event:
        case Wanted(replicas):
            return _balanced(replace(service, wanted=replicas)) if not service.stopping else (service, ())
        case ReplicaServing(number, address):
            return _serving(service, number, address)
        case ReplicaFailed(number, reason, user):
            return _failed(service, number, reason, user, restarts)
        case ReplicaGone(number):
            return _gone(service, number)
        case IngressFailed(reason, user):
            return _ingress_failed(service, reason, user, restarts)
        case IngressDone():
            return _ended(service, "") if service.stopping else _ingress_failed(service, "an ingress ended by itself", False, restarts)
        case StopAsked():
            return _stop(service)


def routes(service: Service) -> Route:
    """The replicas that serve."""
    return Route(tuple((r.id, r.address) for r in service.replicas if r.phase == "serving"))


def _balanced(service: Service) -> Answer:
    """As many that start or serve as are wanted."""
    effects: list[ServiceEffect] = []
    if not service.ingress:
        service, effects = replace(service, ingress=True), [StartIngress()]
    alive = [r for r in service.replicas if r.phase in ("starting", "serving")]
    for _ in range(service.wanted - len(alive)):
        started = Replica(service.started, "starting")
        service = replace(service, replicas=(*service.replicas, started), started=service.started + 1)
        effects.append(StartReplica(started.id))
    surplus = sorted(alive, key=lambda r: (r.phase == "starting", r.id))[service.wanted :]
    for replica in surplus:
        starting = replica.phase == "starting"
        service = _with(service, replace(replica, phase="killing" if starting else "draining"))
        effects += [KillReplica(replica.id)] if starting else [routes(service), DrainReplica(replica.id)]
    return service, tuple(effects)


def _serving(service: Service, number: int, address: str) -> Answer:
    replica = _find(service, number)
    if replica is None or replica.phase != "starting":
        return service, ()
    service = replace(_with(service, Replica(number, "serving", address)), failures=0)
    return service, (routes(service),)


def _failed(service: Service, number: int, reason: str, user: bool, restarts: int) -> Answer:
    replica = _find(service, number)
    if replica is None or replica.phase == "killing":
        return service, ()
    if user and not service.stopping:
        return _ended(service, reason)
    routed = replica.phase == "serving"
    service = replace(_with(service, replace(replica, phase="killing")), failures=service.failures + 1)
    effects: tuple[ServiceEffect, ...] = (*((routes(service),) if routed else ()), KillReplica(number))
    if service.stopping:
        return service, effects
    if service.failures > restarts:
        return _ended(service, f"replica {number}: {reason}; {_spent(restarts)}")
    service, more = _balanced(service)
    return service, (*effects, *more)


def _gone(service: Service, number: int) -> Answer:
    replica = _find(service, number)
    service = replace(service, replicas=tuple(r for r in service.replicas if r.id != number))
    # One that went without having been told to has finished on its own.
    return (service, ()) if replica is None or service.stopping else _rebalanced(service, replica)


def _rebalanced(service: Service, gone: Replica) -> Answer:
    service, effects = _balanced(service)
    return service, (routes(service), *effects) if gone.phase == "serving" else effects


def _ingress_failed(service: Service, reason: str, user: bool, restarts: int) -> Answer:
    if service.stopping or user:
        return _ended(service, reason)
    service = replace(service, failures=service.failures + 1)
    if service.failures > restarts:
        return _ended(service, f"{reason}; {_spent(restarts)}")
    return service, (StartIngress(), routes(service))


def _stop(service: Service) -> Answer:
    if service.stopping or not service.ingress:
        return _ended(service, "")
    return replace(service, stopping=True), (StopIngress(),)


def _ended(service: Service, reason: str) -> Answer:
    return replace(service, ended=reason, replicas=(), ingress=False), (End(),)


def _with(service: Service, changed: Replica) -> Service:
    return replace(service, replicas=tuple(changed if r.id == changed.id else r for r in service.replicas))


def _find(service: Service, number: int) -> Replica | None:
    return next((r for r in service.replicas if r.id == number), None)


def _spent(restarts: int) -> str:
    return f"limits.restarts ({restarts}) is spent, and none came to serve" if restarts else "limits.restarts is 0"
