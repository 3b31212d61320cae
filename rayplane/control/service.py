"""A service's decisions: which replicas to start, drain and kill, and where ingresses may send requests. No clock, no process.

| what happens                            | what follows                                                                         |
|-----------------------------------------|--------------------------------------------------------------------------------------|
| more replicas are wanted                | new ones start                                                                       |
| fewer are wanted                        | those still starting are killed first, then the newest drain: they finish what runs  |
| another layout is wanted                | replicas of it start; as they serve, those of the old one drain (`service_move`)     |
| a replica has no devices                | in a move the old ones that are in its way drain, while another one serves           |
| the new layout cannot be had            | the old one goes on: what is left of it, and new ones for those that left            |
| a replica serves                        | ingresses are told of it; failures are forgotten                                     |
| a replica fails                         | ingresses are told, it is killed, and another one starts in its place                |
| more than `restarts` in a row fail      | the service ends: none of them came to serve                                         |
| the user's mistake                      | the service ends with that message, whatever the budget                              |
| stop                                    | ingresses finish what runs and end, then replicas are killed                         |
| a second stop                           | all are killed                                                                       |
| an ingress fails                        | it starts again, within the same budget                                              |
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.control.service_move import Answer, balanced, found, given_up, moved, placed, routes, with_changed
from rayplane.control.service_state import (
    End,
    IngressDone,
    IngressFailed,
    KillReplica,
    LayoutWanted,
    MoveEnded,
    PlaceWanted,
    Replica,
    ReplicaFailed,
    ReplicaGone,
    ReplicaServing,
    Service,
    ServiceEvent,
    StartIngress,
    StopAsked,
    StopIngress,
    Wanted,
)


def decide(service: Service, event: ServiceEvent, restarts: int) -> Answer:
    """The next state and what to do. What comes after the end, or from a replica that is gone, changes nothing."""
    if service.ended is not None:
        return service, ()
    match event:
        case Wanted(replicas):
            return balanced(replace(service, wanted=replicas)) if not service.stopping else (service, ())
        case LayoutWanted(way, replicas):
            return moved(service, way, replicas)
        case MoveEnded(_, reason):
            failed = bool(reason)
            return replace(service, moves=service.moves + (not failed), given_up=service.given_up + failed), ()
        case PlaceWanted(number, others):
            return placed(service, number, others)
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


def _serving(service: Service, number: int, address: str) -> Answer:
    replica = found(service, number)
    if replica is None or replica.phase != "starting":
        return service, ()
    service = replace(with_changed(service, replace(replica, phase="serving", address=address)), failures=0)
    told = routes(service)
    if service.stopping:
        return service, (told,)
    service, more = balanced(service)
    return service, (told, *more)


def _failed(service: Service, number: int, reason: str, user: bool, restarts: int) -> Answer:
    replica = found(service, number)
    if replica is None or replica.phase == "killing":
        return service, ()
    if _ventured(service, replica):
        service, effects = given_up(with_changed(service, replace(replica, phase="killing")), f"replica {number}: {reason}")
        return service, (KillReplica(number), *effects)
    if user and not service.stopping:
        return _ended(service, reason)
    routed = replica.phase == "serving"
    service = replace(with_changed(service, replace(replica, phase="killing")), failures=service.failures + 1)
    effects = (*((routes(service),) if routed else ()), KillReplica(number))
    if service.stopping:
        return service, effects
    if service.failures > restarts:
        return _ended(service, f"replica {number}: {reason}; {_spent(restarts)}")
    service, more = balanced(service)
    return service, (*effects, *more)


def _ventured(service: Service, replica: Replica) -> bool:
    """Whether it was to be one of a new layout, and the old one can go on."""
    forward = service.move is not None and service.move.back is not None
    return forward and not service.stopping and replica.phase == "starting" and replica.way == service.way


def _gone(service: Service, number: int) -> Answer:
    replica = found(service, number)
    service = replace(service, replicas=tuple(r for r in service.replicas if r.id != number))
    if replica is None or service.stopping:
        return service, ()
    # One that went without having been told to has finished on its own.
    if _ventured(service, replica):
        return given_up(service, f"replica {number} ended by itself")
    service, effects = balanced(service)
    return service, (routes(service), *effects) if replica.phase == "serving" else effects


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


def _spent(restarts: int) -> str:
    return f"limits.restarts ({restarts}) is spent, and none came to serve" if restarts else "limits.restarts is 0"
