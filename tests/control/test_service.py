"""A service's decisions, as tables and under random events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.control.service import decide
from rayplane.control.service_state import (
    DrainReplica,
    End,
    IngressDone,
    IngressFailed,
    KillReplica,
    Replica,
    ReplicaFailed,
    ReplicaGone,
    ReplicaServing,
    Route,
    Service,
    StartIngress,
    StartReplica,
    StopAsked,
    StopIngress,
    Wanted,
)

RESTARTS = 2
STARTING, SERVING, DRAINING, KILLING = "starting", "serving", "draining", "killing"


def service(*phases, wanted=None, **more):
    """Replicas 0, 1, … in these phases; those that serve are at address a0, a1, …"""
    replicas = tuple(Replica(i, p, f"a{i}" if p in (SERVING, DRAINING) else "") for i, p in enumerate(phases))
    return Service(replicas, len(phases) if wanted is None else wanted, len(phases), ingress=True, **more)


def phases(state):
    return {r.id: r.phase for r in state.replicas}


@pytest.mark.parametrize(
    ("before", "event", "after", "effects"),
    [
        (Service(), Wanted(2), {0: STARTING, 1: STARTING}, (StartIngress(), StartReplica(0), StartReplica(1))),
        (service(STARTING, SERVING), ReplicaServing(0, "a0"), {0: SERVING, 1: SERVING}, (Route(((0, "a0"), (1, "a1"))),)),
        (service(SERVING), Wanted(2), {0: SERVING, 1: STARTING}, (StartReplica(1),)),
        (service(SERVING, STARTING), Wanted(1), {0: SERVING, 1: KILLING}, (KillReplica(1),)),
        (service(SERVING, SERVING), Wanted(1), {0: SERVING, 1: DRAINING}, (Route(((0, "a0"),)), DrainReplica(1))),
        (service(STARTING, SERVING), Wanted(1), {0: KILLING, 1: SERVING}, (KillReplica(0),)),
        (service(SERVING, DRAINING, wanted=1), Wanted(2), {0: SERVING, 1: DRAINING, 2: STARTING}, (StartReplica(2),)),
        (
            service(SERVING, SERVING),
            ReplicaFailed(0, "rank 0 died"),
            {0: KILLING, 1: SERVING, 2: STARTING},
            (Route(((1, "a1"),)), KillReplica(0), StartReplica(2)),
        ),
        (service(STARTING), ReplicaFailed(0, "x"), {0: KILLING, 1: STARTING}, (KillReplica(0), StartReplica(1))),
        (service(SERVING, DRAINING, wanted=1), ReplicaFailed(1, "x"), {0: SERVING, 1: KILLING}, (KillReplica(1),)),
        (service(SERVING, KILLING, wanted=1), ReplicaFailed(1, "x"), {0: SERVING, 1: KILLING}, ()),
        (service(SERVING, KILLING, wanted=1), ReplicaGone(1), {0: SERVING}, ()),
        (service(SERVING, DRAINING, wanted=1), ReplicaGone(1), {0: SERVING}, ()),
        (service(SERVING), ReplicaGone(0), {1: STARTING}, (Route(()), StartReplica(1))),
        (service(SERVING), ReplicaServing(7, "a7"), {0: SERVING}, ()),
        (service(DRAINING, wanted=0), ReplicaServing(0, "b"), {0: DRAINING}, ()),
        (service(SERVING), IngressFailed("port taken"), {0: SERVING}, (StartIngress(), Route(((0, "a0"),)))),
        (service(SERVING), IngressDone(), {0: SERVING}, (StartIngress(), Route(((0, "a0"),)))),
        (service(SERVING), StopAsked(), {0: SERVING}, (StopIngress(),)),
        (service(SERVING, stopping=True), Wanted(3), {0: SERVING}, ()),
        (
            service(SERVING, SERVING, stopping=True),
            ReplicaFailed(0, "x"),
            {0: KILLING, 1: SERVING},
            (Route(((1, "a1"),)), KillReplica(0)),
        ),
        (service(SERVING, stopping=True), ReplicaGone(0), {}, ()),
    ],
    ids=str,
)  # fmt: skip
def test_what_follows(before, event, after, effects):
    state, found = decide(before, event, RESTARTS)
    assert (phases(state), found, state.ended) == (after, effects, None)


@pytest.mark.parametrize(
    ("before", "event", "reason"),
    [
        (service(STARTING), ReplicaFailed(0, "no such model", user=True), "no such model"),
        (service(STARTING, failures=2), ReplicaFailed(0, "it died"), "replica 0: it died; limits.restarts (2) is spent"),
        (service(SERVING), IngressFailed("port 80 is taken", user=True), "port 80 is taken"),
        (service(SERVING, failures=2), IngressFailed("x"), "x; limits.restarts (2) is spent"),
        (service(SERVING, stopping=True), IngressDone(), ""),
        (service(SERVING, stopping=True), IngressFailed("x"), "x"),
        (service(SERVING, stopping=True), StopAsked(), ""),
        (Service(), StopAsked(), ""),
    ],
    ids=str,
)
def test_what_ends_a_service(before, event, reason):
    state, effects = decide(before, event, RESTARTS)
    assert effects == (End(),) and state.replicas == () and state.ended is not None and state.ended.startswith(reason)
    assert decide(state, Wanted(3), RESTARTS) == (state, ())


def test_failures_are_forgotten_once_a_replica_serves():
    """So a replica that fails every day does not end a service after some days."""
    state, number = decide(Service(), Wanted(1), RESTARTS)[0], 0
    for _ in range(20):
        state, _ = decide(state, ReplicaServing(number, "a"), RESTARTS)
        state, effects = decide(state, ReplicaFailed(number, "it died"), RESTARTS)
        number = next(e.id for e in effects if isinstance(e, StartReplica))
        assert state.ended is None and state.failures == 1


events = st.one_of(
    st.builds(Wanted, st.integers(0, 4)),
    st.builds(ReplicaServing, st.integers(0, 9), st.just("a")),
    st.builds(ReplicaFailed, st.integers(0, 9), st.just("x"), st.booleans()),
    st.builds(ReplicaGone, st.integers(0, 9)),
    st.builds(IngressFailed, st.just("x")),
    st.builds(IngressDone),
    st.builds(StopAsked),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(events, max_size=40))
def test_effects_never_contradict(happens):
    """No replica starts twice, none is routed to that does not serve, and after the end nothing is done."""
    state, effects = decide(Service(), Wanted(1), RESTARTS)
    started, killed = [e.id for e in effects if isinstance(e, StartReplica)], set()
    for event in happens:
        ended = state.ended is not None
        state, effects = decide(state, event, RESTARTS)
        assert not (ended and effects)
        for effect in effects:
            match effect:
                case StartReplica(number):
                    started.append(number)
                case KillReplica(number):
                    assert number in started and number not in killed
                    killed.add(number)
                case DrainReplica(number):
                    assert number in started and number not in killed
                case Route(replicas):
                    assert not killed & {number for number, _ in replicas}
        assert len(set(started)) == len(started)
        if state.ended is None and not state.stopping:
            alive = sum(r.phase in (STARTING, SERVING) for r in state.replicas)
            assert alive == state.wanted, "as many that start or serve as are wanted"
        assert (state.ended is not None) == (End() in effects) or ended
