"""A service's replicas towards what is wanted: so many, cut in one way; those that are cut otherwise leave as their successors serve.

2 x 1 device ─▶ 1 x pp2, 3 devices     device 0   serves ───────────────────────────── drains
                                       device 1   serves  drains ┐
                                       device 2                  └ pp2 starts ──────── serves ──▶

What leaves is at no time more than its share of what has come, but for devices that a successor needs; one that serves is left in any
case, unless the service may hold its requests. The first successor that does not come to serve turns the move round.
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.control.service_state import (
    Back,
    DrainReplica,
    KillReplica,
    Move,
    Replica,
    Route,
    Service,
    ServiceEffect,
    StartIngress,
    StartReplica,
    TellMove,
)
from rayplane.control.way import Way

ALIVE = ("starting", "serving")
Answer = tuple[Service, tuple[ServiceEffect, ...]]


def routes(service: Service) -> Route:
    """The replicas that serve."""
    return Route(tuple((r.id, r.address) for r in service.replicas if r.phase == "serving"))


def with_changed(service: Service, changed: Replica) -> Service:
    """One of its replicas is another way now."""
    return replace(service, replicas=tuple(changed if r.id == changed.id else r for r in service.replicas))


def found(service: Service, number: int) -> Replica | None:
    """The replica of that number."""
    return next((r for r in service.replicas if r.id == number), None)


def balanced(service: Service) -> Answer:
    """As many of the service's way that start or serve as are wanted, and of others only those that have no successor yet."""
    effects: list[ServiceEffect] = []
    if not service.ingress:
        service, effects = replace(service, ingress=True), [StartIngress()]
    alive = [r for r in service.replicas if r.phase in ALIVE and r.way == service.way]
    for _ in range(service.wanted - len(alive)):
        started = Replica(service.started, "starting", way=service.way)
        service = replace(service, replicas=(*service.replicas, started), started=service.started + 1)
        effects.append(StartReplica(started.id, started.way))
    surplus = sorted(alive, key=lambda r: (r.phase == "starting", r.id))[service.wanted :]
    for replica in (*surplus, *_leavers(service)):
        service, left = _left(service, replica)
        effects += left
    service, ended = _arrived(service)
    return service, (*effects, *ended)


def moved(service: Service, way: Way, replicas: int) -> Answer:
    """Another way is wanted; one that has not been reached yet is forgotten."""
    if service.stopping or not service.ingress:
        return service, ()
    if way != service.way:
        back = service.move.back if service.move else Back(service.way, service.wanted)
        back = None if back and back.way == way else back
        service = replace(service, way=way, move=Move(back, _others(service, way)))
    return balanced(replace(service, wanted=replicas))


def given_up(service: Service, reason: str) -> Answer:
    """What the service was before goes on."""
    assert service.move and service.move.back
    way, back = service.way, service.move.back
    service = replace(service, way=back.way, wanted=back.replicas, move=Move(None, _others(service, back.way)))
    service, effects = balanced(service)
    return service, (*effects, TellMove(way, reason))


def placed(service: Service, number: int, others: tuple[int, ...]) -> Answer:
    """Whoever is in the way of a replica leaves, where another one serves."""
    replica, move = found(service, number), service.move
    if replica is None or move is None or replica.phase != "starting" or replica.way != service.way or service.stopping:
        return service, ()
    serving = [r for r in service.replicas if r.phase == "serving"]
    leavers = [r for r in serving if r.id in others and r.way != service.way]
    if leavers and (len(serving) > len(leavers) or service.hold):
        effects: tuple[ServiceEffect, ...] = ()
        for leaver in leavers:
            service, left = _left(service, leaver)
            effects += left
        return service, effects
    if move.back:
        return given_up(service, _no_device(service, len(serving) if leavers else 0))
    return _stayed(service, serving)


def _no_device(service: Service, serving: int) -> str:
    if not serving:
        return f"the cluster has no place for {service.way}"
    return f"no device is free for {service.way} while one replica goes on; serve.replicas.hold_s would let requests wait"


def _stayed(service: Service, serving: list[Replica]) -> Answer:
    """There is no way back for all: those that serve go on as they are."""
    if any(r.way == service.way for r in serving):
        alive = sum(r.phase in ALIVE and r.way == service.way for r in service.replicas)
        return balanced(replace(service, wanted=alive - 1))
    if not serving:
        return service, ()
    way = serving[-1].way
    return balanced(replace(service, way=way, wanted=sum(r.way == way for r in serving), move=Move(None, _others(service, way))))


def _others(service: Service, way: Way) -> int:
    return sum(r.phase == "serving" and r.way != way for r in service.replicas)


def _leavers(service: Service) -> list[Replica]:
    """Replicas of other ways that have a successor; the newest leave first."""
    others = [r for r in service.replicas if r.phase in ALIVE and r.way != service.way]
    serving = [r for r in others if r.phase == "serving"]
    lacking = service.wanted - sum(r.phase == "serving" and r.way == service.way for r in service.replicas)
    kept = -(-service.move.leaving * lacking // service.wanted) if service.move and lacking > 0 else 0
    return [*(r for r in others if r.phase == "starting"), *serving[kept:]]


def _left(service: Service, replica: Replica) -> Answer:
    if replica.phase == "starting":
        return with_changed(service, replace(replica, phase="killing")), (KillReplica(replica.id),)
    service = with_changed(service, replace(replica, phase="draining"))
    return service, (routes(service), DrainReplica(replica.id))


def _arrived(service: Service) -> Answer:
    """The move is over once all that is alive is of the service's way, and serves."""
    alive = [r for r in service.replicas if r.phase in ALIVE]
    if service.move is None or any(r.way != service.way or r.phase != "serving" for r in alive):
        return service, ()
    told = (TellMove(service.way),) if service.move.back else ()
    return replace(service, move=None), told
