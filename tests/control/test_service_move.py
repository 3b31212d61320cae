"""A service on its way to another layout: what follows from every event in every state, and where it ends whatever happens."""

import math
from collections import deque
from itertools import product

import pytest
from fake_service import place
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.control.berths import Berths
from rayplane.control.service import decide
from rayplane.control.service_state import (
    Back,
    DrainReplica,
    End,
    IngressDone,
    IngressFailed,
    KillReplica,
    LayoutWanted,
    Move,
    MoveEnded,
    PlaceWanted,
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
    TellMove,
    Wanted,
)
from rayplane.control.way import Way

RESTARTS = 2
ONE, TWO, THREE = Way(), Way(cores=2), Way(cores=3)
NO_DEVICE = "no device is free for 2 cores while one replica goes on; serve.replicas.hold_s would let requests wait"
NO_PLACE = "the cluster has no place for 2 cores"
STARTING, SERVING, DRAINING, KILLING = "starting", "serving", "draining", "killing"


def replica(number, phase, way=ONE):
    return Replica(number, phase, f"a{number}" if phase in (SERVING, DRAINING) else "", way)


def service(*replicas, wanted=1, move=None, way=None, **more):
    way = way or (TWO if move else ONE)
    return Service(replicas, wanted, len(replicas), ingress=True, way=way, move=move, **more)


def route(*numbers):
    return Route(tuple((n, f"a{n}") for n in numbers))


FORTH = Move(Back(ONE, 2), 2)
BACK = Move(None, 1)
OLD = (replica(0, SERVING), replica(1, SERVING))
MOVING = service(*OLD, replica(2, STARTING, TWO), move=FORTH)
HALF = service(*OLD, replica(2, SERVING, TWO), replica(3, STARTING, TWO), move=FORTH, wanted=2)


@pytest.mark.parametrize(
    ("before", "event", "after", "effects"),
    [
        (service(*OLD, wanted=2), LayoutWanted(TWO, 1), {0: SERVING, 1: SERVING, 2: STARTING}, (StartReplica(2, TWO),)),
        (service(*OLD, wanted=2), LayoutWanted(ONE, 1), {0: SERVING, 1: DRAINING}, (route(0), DrainReplica(1))),
        (
            service(replica(0, STARTING), replica(1, SERVING), wanted=2),
            LayoutWanted(TWO, 1),
            {0: KILLING, 1: SERVING, 2: STARTING},
            (StartReplica(2, TWO), KillReplica(0)),
        ),
        (service(*OLD, wanted=2, stopping=True), LayoutWanted(TWO, 1), {0: SERVING, 1: SERVING}, ()),
        (Service(), LayoutWanted(TWO, 1), {}, ()),
        (
            MOVING,
            ReplicaServing(2, "a2"),
            {0: DRAINING, 1: DRAINING, 2: SERVING},
            (route(0, 1, 2), route(1, 2), DrainReplica(0), route(2), DrainReplica(1), TellMove(TWO)),
        ),
        (
            service(*OLD, replica(2, STARTING, TWO), replica(3, STARTING, TWO), move=FORTH, wanted=2),
            ReplicaServing(2, "a2"),
            {0: SERVING, 1: DRAINING, 2: SERVING, 3: STARTING},
            (route(0, 1, 2), route(0, 2), DrainReplica(1)),
        ),
        (MOVING, PlaceWanted(2, (1,)), {0: SERVING, 1: DRAINING, 2: STARTING}, (route(0), DrainReplica(1))),
        (
            MOVING,
            PlaceWanted(2, (0, 1)),
            {0: SERVING, 1: SERVING, 2: KILLING},
            (KillReplica(2), TellMove(TWO, NO_DEVICE)),
        ),
        (MOVING, PlaceWanted(2, ()), {0: SERVING, 1: SERVING, 2: KILLING}, (KillReplica(2), TellMove(TWO, NO_PLACE))),
        (
            service(*OLD, replica(2, STARTING, TWO), move=FORTH, hold=True),
            PlaceWanted(2, (0, 1)),
            {0: DRAINING, 1: DRAINING, 2: STARTING},
            (route(1), DrainReplica(0), route(), DrainReplica(1)),
        ),
        (service(*OLD, wanted=2), PlaceWanted(1, (0,)), {0: SERVING, 1: SERVING}, ()),
        (MOVING, PlaceWanted(0, (1,)), {0: SERVING, 1: SERVING, 2: STARTING}, ()),
        (
            MOVING,
            ReplicaFailed(2, "no such kernel", user=True),
            {0: SERVING, 1: SERVING, 2: KILLING},
            (KillReplica(2), TellMove(TWO, "replica 2: no such kernel")),
        ),
        (MOVING, ReplicaGone(2), {0: SERVING, 1: SERVING}, (TellMove(TWO, "replica 2 ended by itself"),)),
        (
            service(replica(0, SERVING), replica(1, DRAINING), replica(2, STARTING, TWO), move=FORTH),
            ReplicaFailed(2, "x"),
            {0: SERVING, 1: DRAINING, 2: KILLING, 3: STARTING},
            (KillReplica(2), StartReplica(3, ONE), TellMove(TWO, "replica 2: x")),
        ),
        (MOVING, ReplicaFailed(1, "x"), {0: SERVING, 1: KILLING, 2: STARTING}, (route(0), KillReplica(1))),
        (MOVING, ReplicaGone(1), {0: SERVING, 2: STARTING}, (route(0),)),
        (
            HALF,
            ReplicaFailed(2, "it died"),
            {0: SERVING, 1: SERVING, 2: KILLING, 3: STARTING, 4: STARTING},
            (route(0, 1), KillReplica(2), StartReplica(4, TWO)),
        ),
        (MOVING, LayoutWanted(ONE, 2), {0: SERVING, 1: SERVING, 2: KILLING}, (KillReplica(2),)),
        (MOVING, LayoutWanted(THREE, 1), {0: SERVING, 1: SERVING, 2: KILLING, 3: STARTING}, (StartReplica(3, THREE), KillReplica(2))),
        (MOVING, Wanted(2), {0: SERVING, 1: SERVING, 2: STARTING, 3: STARTING}, (StartReplica(3, TWO),)),
        (MOVING, StopAsked(), {0: SERVING, 1: SERVING, 2: STARTING}, (StopIngress(),)),
        (MOVING, IngressFailed("x"), {0: SERVING, 1: SERVING, 2: STARTING}, (StartIngress(), route(0, 1))),
        (
            service(replica(0, STARTING), replica(1, SERVING, TWO), replica(2, SERVING, TWO), way=ONE, move=BACK),
            PlaceWanted(0, (1, 2)),
            {0: KILLING, 1: SERVING, 2: SERVING},
            (KillReplica(0),),  # there is no way back for all: the new ones go on
        ),
        (
            service(replica(0, SERVING), replica(1, STARTING), replica(2, SERVING, TWO), way=ONE, move=BACK, wanted=2),
            PlaceWanted(1, ()),
            {0: SERVING, 1: KILLING, 2: DRAINING},
            (KillReplica(1), route(0), DrainReplica(2)),
        ),
        (
            service(replica(0, STARTING), replica(1, SERVING, TWO), way=ONE, move=BACK),
            ReplicaFailed(0, "x"),
            {0: KILLING, 1: SERVING, 2: STARTING},
            (KillReplica(0), StartReplica(2, ONE)),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_follows_in_a_move(before, event, after, effects):
    state, found = decide(before, event, RESTARTS)
    assert ({r.id: r.phase for r in state.replicas}, found, state.ended) == (after, effects, None)


def test_what_was_made_and_given_up_is_counted_and_told_apart():
    state, effects = decide(MOVING, ReplicaServing(2, "a2"), RESTARTS)
    (told,) = (e for e in effects if isinstance(e, TellMove))
    assert state.move is None and (state.way, state.wanted) == (TWO, 1)
    assert decide(state, MoveEnded(told.way, told.reason), RESTARTS)[0].moves == 1
    state, effects = decide(MOVING, ReplicaFailed(2, "x"), RESTARTS)
    assert state.move is None and (state.way, state.wanted, state.failures) == (ONE, 2, 0)
    state, effects = decide(state, MoveEnded(TWO, "x"), RESTARTS)
    assert (state.moves, state.given_up, effects) == (0, 1, ())


REPLICAS = [(phase, way) for phase in (STARTING, SERVING, DRAINING, KILLING) for way in (ONE, TWO)]
STATES = [
    service(replica(0, phase, way), replica(1, other, TWO), move=move, way=TWO, wanted=wanted, **more)
    for (phase, way), other, move, wanted, more in product(
        REPLICAS, (STARTING, SERVING), (None, FORTH, BACK), (0, 1, 2), ({}, {"stopping": True}, {"hold": True}, {"failures": 2})
    )
    if move or way == TWO or phase in (DRAINING, KILLING)  # what is alive and cut otherwise is there in a move only
] + [Service(), Service(ended=""), Service(ended="x")]
EVENTS = [
    *map(Wanted, range(3)),
    *(LayoutWanted(way, n) for way in (ONE, TWO, THREE) for n in (1, 2)),
    MoveEnded(TWO), MoveEnded(TWO, "x"),
    *(PlaceWanted(n, others) for n in (0, 1, 9) for others in ((), (0,), (1,), (0, 1))),
    *(ReplicaServing(n, f"a{n}") for n in (0, 1, 9)),
    *(ReplicaFailed(n, "x", user) for n in (0, 1, 9) for user in (False, True)),
    *map(ReplicaGone, (0, 1, 9)),
    IngressFailed("x"), IngressFailed("x", user=True), IngressDone(), StopAsked(),
]  # fmt: skip


def test_every_event_in_every_state_leaves_a_service_that_makes_sense():
    for state, event in product(STATES, EVENTS):
        after, effects = decide(state, event, RESTARTS)
        check(state, event, after, effects)


def check(before, event, after, effects):
    """What holds of every step."""
    about = (before, event, after, effects)
    if before.ended is not None:
        assert (after, effects) == (before, ()), about
        return
    assert (after.ended is not None) == (effects[-1:] == (End(),)) == (End() in effects), about
    if after.ended is not None:
        assert not after.replicas, about
        return
    gone = {event.id} if isinstance(event, ReplicaGone) else set()
    assert {r.id for r in before.replicas} - gone <= {r.id for r in after.replicas}, about  # none is forgotten
    old, new = ({r.id: r.phase for r in s.replicas} for s in (before, after))
    assert {e.id for e in effects if isinstance(e, StartReplica)} == set(new) - set(old), about
    for effect, phase in ((KillReplica, KILLING), (DrainReplica, DRAINING)):
        assert {e.id for e in effects if isinstance(e, effect)} == {n for n in new if new[n] == phase != old.get(n)}, about
    serving, served = ({n for n, phase in phases.items() if phase == SERVING} for phases in (new, old))
    routed = [[n for n, _ in e.replicas] for e in effects if isinstance(e, Route)]
    if serving != served and not before.stopping:
        assert routed and set(routed[-1]) == serving, about
    own_doing = not isinstance(event, ReplicaFailed | ReplicaGone) and event != Wanted(0) and before.wanted
    if served and own_doing and not before.hold:
        assert serving and all(routed), about  # while one can serve, requests have somewhere to go
    alive = [r for r in after.replicas if r.phase in (STARTING, SERVING)]
    if after != before and before.ingress and isinstance(event, Wanted | LayoutWanted) and not after.stopping:
        assert sum(r.way == after.way for r in alive) == after.wanted, about


class Ranks:
    """What replicas do, on devices that are taken and given back; whether one comes up is for a test to say."""

    def __init__(self, devices, hold):
        self.devices, self.berths = devices, Berths(devices, place)
        self.state, self.waiting, self.placed, self.phases, self.ways = Service(hold=hold), deque(), set(), {}, {}
        self.routed, self.begun = (), set()
        self.do(Wanted(min(2, devices)))

    def do(self, *events):
        pending = deque(events)
        while pending:
            event = pending.popleft()
            before = self.state
            self.state, effects = decide(before, event, 10**6)
            check(before, event, self.state, effects)
            for effect in effects:
                pending.extend(self.carry_out(effect))

    def carry_out(self, effect):
        match effect:
            case StartReplica(number, way):
                assert number not in self.begun
                self.begun.add(number)
                self.ways[number] = way
                self.waiting.append(number)
                self.fill()
            case DrainReplica(number) | KillReplica(number) if number in self.waiting:
                self.waiting.remove(number)
                self.fill()
                return [ReplicaGone(number)]
            case Route(replicas):
                self.routed = replicas
            case TellMove(way, reason):
                return [MoveEnded(way, reason)]
        return []

    def fill(self):
        while self.waiting and self.berths.take(self.waiting[0], self.ways[self.waiting[0]]):
            self.placed.add(self.waiting.popleft())

    def phase(self, number):
        return next((r.phase for r in self.state.replicas if r.id == number), KILLING)

    def step(self, number, comes_up):
        """The replica does what it is about to do."""
        phase = self.phase(number)
        if phase == STARTING:
            self.do(ReplicaServing(number, f"a{number}") if comes_up else ReplicaFailed(number, "it died"))
        elif phase == SERVING and not comes_up:
            self.do(ReplicaFailed(number, "it died"))
        elif phase in (DRAINING, KILLING):
            self.placed.remove(number)
            self.berths.give(number, good=True)
            self.fill()
            self.do(ReplicaGone(number))

    def look(self):
        if self.waiting and all(self.phase(n) == SERVING for n in self.placed):
            number = self.waiting[0]
            others = sorted(n for n in self.placed if self.ways[n] != self.ways[number])
            self.do(PlaceWanted(number, self.berths.lacking(self.ways[number], others)))


acts = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("look")),
    st.tuples(st.just("layout"), st.sampled_from([ONE, TWO, THREE]), st.integers(1, 6)),
    st.tuples(st.just("wanted"), st.integers(1, 6)),
)


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 6), st.booleans(), st.lists(acts, max_size=40))
def test_whatever_happens_all_that_serves_is_alike_in_the_end(devices, hold, happens):
    """And nothing is left of what is not wanted, and no device is lost."""
    ranks = Ranks(devices, hold)
    for act in happens:
        match act:
            case "step", number, comes_up if ranks.placed:
                ranks.step(sorted(ranks.placed)[number % len(ranks.placed)], comes_up)
            case ("look",):
                ranks.look()
            case "layout", way, replicas:
                if way.devices <= devices:
                    ranks.do(LayoutWanted(way, min(replicas, devices // way.devices)))
            case "wanted", replicas:
                ranks.do(Wanted(min(replicas, devices // ranks.state.way.devices)))
    for _ in range(100):
        for number in sorted(ranks.placed):
            ranks.step(number, True)
        ranks.look()
    state = ranks.state
    assert state.move is None and state.ended is None and not ranks.waiting
    assert [r.phase for r in state.replicas] == [SERVING] * state.wanted and {r.way for r in state.replicas} == {state.way}
    assert {number for number, _ in ranks.routed} == {r.id for r in state.replicas} == ranks.placed
    left = sum(math.inf if ranks.berths.take(-n, ONE) is None else 1 for n in range(1, devices + 1 - state.wanted * state.way.devices))
    assert left == devices - state.wanted * state.way.devices
