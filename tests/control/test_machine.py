"""Every (state, event) pair has its line here; what is not in CHANGES must leave the state as it is."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.control.budget import Spent
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import (
    BetterPlan,
    Event,
    GangDone,
    KillDone,
    NothingFits,
    PauseRequested,
    Placed,
    PlaceFailed,
    Planned,
    RankExited,
    RankFailed,
    RankLost,
    RankSlow,
    ResumeRequested,
    Saved,
    Started,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
    Warned,
)
from rayplane.control.machine import GATHER_S, INTERRUPTED, react
from rayplane.control.state import (
    Arrangement,
    Drain,
    Draining,
    Failed,
    Failure,
    Finished,
    Kill,
    Killing,
    Paused,
    Pending,
    Placing,
    Progress,
    Recall,
    Release,
    Replan,
    Replanning,
    Running,
    Start,
    Starting,
    State,
    Vacate,
)
from rayplane.spec.job import LimitsSection, RestartsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

LIMITS = LimitsSection(restarts=2)
NONE, TWO, FIVE = Checkpoint(), Checkpoint(2, "run/step-00000002"), Checkpoint(5, "run/step-00000005")
OLD, NEW = (Arrangement(Layout(dp=dp, boundaries=(2,)), Placement(()), 0.5) for dp in (2, 1))
AT = Progress(1, 3, TWO, OLD)
ONCE, SPENT = Spent(rank=1), Spent(rank=2, node=2)
LAST = replace(AT, attempt=3, spent=SPENT)
DEAD = Failure((1,), "was killed by SIGKILL")
ALSO = Failure((0,), "Connection closed by peer", consequence=True)
BAD_DATA = Failure((0,), "no such file", "user")
GONE = Failure((1,), "its node b is lost", "node")
SLOW = Failure((1,), "takes 2.5 times as long as its peers", "straggler")
NAN = Failure((0,), "loss is nan", "nan")
SILENT = {
    "start": Failure((1,), "not ready within 9 s"),
    "step": Failure((1,), "no step after step 3 within 9 s"),
    "drain": Failure((1,), "did not save within 9 s"),
}

STATES = {
    "pending": Pending(),
    "placing": Placing(AT),
    "placing again": Placing(replace(AT, attempt=2)),
    "starting": Starting(AT),
    "running": Running(AT),
    "draining": Draining(AT),
    "pausing": Draining(AT, "pause"),
    "moving": Draining(AT, NEW),
    "killing": Killing(AT, (DEAD,), "retry"),
    "killing, budget spent": Killing(LAST, (DEAD,), "retry"),
    "killing, user error": Killing(AT, (BAD_DATA,), "retry"),
    "killing, node lost": Killing(AT, (ALSO, GONE), "retry"),
    "killing, nan again": Killing(replace(AT, spent=Spent(nan_step=3)), (NAN,), "retry"),
    "killing, to stop": Killing(AT, (), "stop"),
    "killing, to pause": Killing(AT, (), "pause"),
    "killing, failed pausing": Killing(AT, (DEAD,), "pause"),
    "killing, failed draining": Killing(AT, (DEAD,), "stop"),
    "killing, interrupted": Killing(AT, (), "interrupt"),
    "replanning": Replanning(AT, "rank 1: its node b is lost"),
    "paused": Paused(AT),
    "finished": Finished(AT, drained=False),
    "failed": Failed(AT, "why", 1),
}
EVENTS = {
    "submitted": Submitted(TWO, OLD),
    "placed": Placed(),
    "place failed": PlaceFailed("too small"),
    "spawn failed": PlaceFailed("actor lost", retry=True),
    "started": Started(2),
    "step done": StepDone(4),
    "saved": Saved(FIVE),
    "warned": Warned("step-00000005 is damaged"),
    "gang done": GangDone(5, drained=False),
    "gang drained": GangDone(4, drained=True),
    "rank failed": RankFailed(0, "rank", "Connection closed by peer"),
    "user failed": RankFailed(0, "user", "no such file"),
    "rank exited": RankExited(1, 0, 9),
    "node lost": RankLost(1, "its node b is lost"),
    "rank slow": RankSlow(1, 2.5, replace=False),
    "rank slow, another free": RankSlow(1, 2.5, replace=True),
    "start timeout": TimedOut("start", (1,), 9.0, 3),
    "step timeout": TimedOut("step", (1,), 9.0, 3),
    "drain timeout": TimedOut("drain", (1,), 9.0, 3),
    "stop": StopRequested(),
    "pause": PauseRequested(),
    "resume": ResumeRequested(),
    "better plan": BetterPlan(NEW, "stage 1 is slow"),
    "same plan": BetterPlan(OLD, "nothing"),
    "planned": Planned(NEW),
    "nothing fits": NothingFits("needs 2 devices, 1 is left"),
    "kill done": KillDone(FIVE),
}
KEPT = replace(AT, checkpoint=FIVE)
AT_FIVE = replace(AT, step=5, checkpoint=FIVE)


def again(progress, arrangement=OLD):
    """The next attempt."""
    progress = replace(progress, attempt=progress.attempt + 1, step=progress.checkpoint.step, arrangement=arrangement)
    return Placing(progress), (Start(progress.attempt, progress.checkpoint, arrangement),)


def failing(then, how=Recall):
    """What each failure does to a live gang."""
    failures = {"rank exited": DEAD, "node lost": GONE, **{f"{kind} timeout": failure for kind, failure in SILENT.items()}}
    return {
        "rank failed": (Killing(AT, (ALSO,), then), (Recall(GATHER_S) if how is Recall else Kill(),)),
        "user failed": (Killing(AT, (BAD_DATA,), then), (Kill(),)),
        **{name: (Killing(AT, (failure,), then), (how(),)) for name, failure in failures.items()},
    }


def progressing(state, *then):
    """What progress does to a gang that trains."""
    return {
        "step done": (state(replace(AT, step=4), *then), ()),
        "saved": (state(KEPT, *then), ()),
        "gang done": (Finished(replace(AT, step=5), drained=False), (Release(),)),
    }


DRAINED = {"gang drained": (Finished(replace(AT, step=4), drained=True), (Release(),))}


def gathering(progress, failures, then):
    """Failures that come while the gang is being killed are added, one per rank."""
    known = {rank for f in failures for rank in f.ranks}
    late = {"rank failed": ALSO, "user failed": BAD_DATA, "rank exited": DEAD, "node lost": GONE}
    return {name: (Killing(progress, (*failures, f), then), ()) for name, f in late.items() if not known.issuperset(f.ranks)}


def wanted(progress, failures):
    """What the user may still want while a gang is being killed for a failure."""
    return {name: (Killing(progress, failures, name), ()) for name in ("stop", "pause")}


CHANGES = {
    "pending": {
        "submitted": (Placing(Progress(1, 2, TWO, OLD)), (Start(1, TWO, OLD),)),
        "stop": (Finished(Progress(), drained=True), (Release(),)),
    },
    "placing": {
        "placed": (Starting(AT), ()),
        "place failed": (Failed(AT, "too small", 1), (Release(),)),
        "spawn failed": (Killing(AT, (Failure((), "actor lost"),), "retry"), (Recall(),)),
        "stop": (Killing(AT, (), "stop"), (Kill(),)),
        "pause": (Killing(AT, (), "pause"), (Kill(),)),
        **failing("retry"),
    },
    "placing again": {
        "placed": (Starting(replace(AT, attempt=2)), ()),
        "place failed": (Replanning(replace(AT, attempt=2), "too small"), (Replan("node", ()),)),
        "spawn failed": (Killing(replace(AT, attempt=2), (Failure((), "actor lost"),), "retry"), (Recall(),)),
        "stop": (Killing(replace(AT, attempt=2), (), "stop"), (Kill(),)),
        "pause": (Killing(replace(AT, attempt=2), (), "pause"), (Kill(),)),
        **{name: (replace(s, progress=replace(AT, attempt=2)), e) for name, (s, e) in failing("retry").items()},
    },
    "starting": {
        "started": (Running(replace(AT, step=2)), ()),
        "stop": (Killing(AT, (), "stop"), (Kill(),)),
        "pause": (Killing(AT, (), "pause"), (Kill(),)),
        **failing("retry"),
    },
    "running": {
        "stop": (Draining(AT), (Drain(),)),
        "pause": (Draining(AT, "pause"), (Drain(),)),
        "better plan": (Draining(AT, NEW), (Drain(),)),
        "rank slow, another free": (Killing(AT, (SLOW,), "retry"), (Recall(),)),
        **DRAINED,
        **progressing(Running),
        **failing("retry"),
    },
    "draining": {
        "stop": (Killing(AT, (), "interrupt"), (Kill(),)),
        **DRAINED,
        **progressing(Draining),
        **failing("stop", Kill),
    },
    "pausing": {
        "stop": (Draining(AT), ()),
        "resume": (Draining(AT, OLD), ()),
        "gang drained": (Paused(replace(AT, step=4)), (Vacate(),)),
        **progressing(Draining, "pause"),
        **failing("pause"),
    },
    "moving": {
        "stop": (Draining(AT), ()),
        "pause": (Draining(AT, "pause"), ()),
        "gang drained": again(AT, NEW),
        **progressing(Draining, NEW),
        **failing("retry"),
    },
    "killing": {
        **gathering(AT, (DEAD,), "retry"),
        **wanted(AT, (DEAD,)),
        "kill done": again(replace(KEPT, spent=ONCE)),
    },
    "killing, budget spent": {
        **gathering(LAST, (DEAD,), "retry"),
        **wanted(LAST, (DEAD,)),
        "kill done": (
            Failed(replace(LAST, checkpoint=FIVE), "rank 1 was killed by SIGKILL; limits.restarts (2) is spent", 1),
            (Release(),),
        ),
    },
    "killing, user error": {
        **gathering(AT, (BAD_DATA,), "retry"),
        **wanted(AT, (BAD_DATA,)),
        "kill done": (Failed(KEPT, "rank 0: no such file", 1), (Release(),)),
    },
    "killing, node lost": {
        **gathering(AT, (ALSO, GONE), "retry"),
        **wanted(AT, (ALSO, GONE)),
        "kill done": (
            Replanning(replace(KEPT, spent=Spent(node=1)), "rank 1: its node b is lost (then rank 0: Connection closed by peer)"),
            (Replan("node", (1,)),),
        ),
    },
    "killing, nan again": {
        **gathering(replace(AT, spent=Spent(nan_step=3)), (NAN,), "retry"),
        **wanted(replace(AT, spent=Spent(nan_step=3)), (NAN,)),
        "kill done": (
            Failed(replace(KEPT, spent=Spent(nan_step=3)), "rank 0: loss is nan; it came a second time after step 3", 1),
            (Release(),),
        ),
    },
    "killing, to stop": {
        **gathering(AT, (), "stop"),
        "kill done": (Finished(AT_FIVE, drained=True), (Release(),)),
    },
    "killing, to pause": {
        **gathering(AT, (), "pause"),
        "stop": (Killing(AT, (), "stop"), ()),
        "kill done": (Paused(AT_FIVE), (Vacate(),)),
    },
    "killing, failed pausing": {
        **gathering(AT, (DEAD,), "pause"),
        "stop": (Killing(AT, (DEAD,), "stop"), ()),
        "kill done": (Paused(replace(KEPT, spent=ONCE)), (Vacate(),)),
    },
    "killing, failed draining": {
        **gathering(AT, (DEAD,), "stop"),
        "kill done": (Failed(KEPT, "failed before the last steps were saved: rank 1 was killed by SIGKILL", 1), (Release(),)),
    },
    "killing, interrupted": {
        **gathering(AT, (), "interrupt"),
        "kill done": (Failed(KEPT, "stopped before the last steps were saved", INTERRUPTED), (Release(),)),
    },
    "replanning": {
        "planned": again(AT, NEW),
        "nothing fits": (Failed(AT, "rank 1: its node b is lost; needs 2 devices, 1 is left", 1), (Release(),)),
        "stop": (Finished(AT, drained=True), (Release(),)),
        "pause": (Paused(AT), (Vacate(),)),
    },
    "paused": {
        "resume": again(AT),
        "stop": (Finished(AT, drained=True), (Release(),)),
        "better plan": (Paused(replace(AT, arrangement=NEW)), ()),
    },
    "finished": {},
    "failed": {},
}


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_every_event_in_every_state(state, event):
    expected = CHANGES[state].get(event, (STATES[state], ()))
    assert react(STATES[state], EVENTS[event], LIMITS) == expected


def test_the_tables_cover_all_states_and_events():
    assert {type(s) for s in STATES.values()} == set(get_args(State))
    assert {type(e) for e in EVENTS.values()} == set(get_args(Event))
    assert set(CHANGES) == set(STATES)
    assert all(set(changes) <= set(EVENTS) for changes in CHANGES.values())


def play(choose, limits, max_events):
    """A job whose world answers effects at once; in between `choose` says what comes. Gives the states and effects."""
    effects_done = []
    state, effects = react(Pending(), Submitted(NONE, OLD), limits)
    for _ in range(max_events):
        event = None
        for effect in effects:
            assert event is None or isinstance(effect, Vacate), "one effect that comes back at a time"
            effects_done.append(effect)
            match effect:
                case Start():
                    event = Placed()
                case Kill() | Recall():
                    event = KillDone(TWO)
                case Drain():
                    event = GangDone(3, drained=True) if choose("drains") else StopRequested()
                case Replan():
                    event = Planned(NEW) if choose("fits") else NothingFits("too small")
                case Release():
                    return state, effects_done
        event = event or (ResumeRequested() if isinstance(state, Paused) else choose("event"))
        state, effects = react(state, event, limits)
    return state, effects_done


def times(effects, *kinds):
    return sum(isinstance(effect, kinds) for effect in effects)


WILD = st.sampled_from(
    [
        *(Placed(), Started(0), StepDone(1), Saved(TWO), StopRequested(), GangDone(9, drained=False)),
        *(RankExited(0, 1, 0), RankFailed(1, "rank", "reset"), RankFailed(0, "user", "bad"), TimedOut("step", (0,), 1.0, 1)),
        *(RankLost(0, "gone"), RankFailed(0, "nan", "nan"), RankFailed(0, "memory", "too little"), RankSlow(0, 2.0, replace=True)),
        *(RankLost(0, "gone", "preemption"), PlaceFailed("too small"), PlaceFailed("lost", retry=True)),
    ]
)
WISHES = st.sampled_from([PauseRequested(), ResumeRequested(), BetterPlan(NEW, "faster"), BetterPlan(OLD, "faster")])
budgets = st.builds(RestartsSection, rank=st.integers(0, 3), node=st.integers(0, 3), preemption=st.integers(0, 3))


@given(st.data(), budgets)
def test_budgets_are_respected_whatever_comes(data, restarts):
    moves = 0

    def choose(what):
        nonlocal moves
        if what != "event":
            return data.draw(st.booleans())
        event = data.draw(st.one_of(WILD, WISHES))
        moves += isinstance(event, PauseRequested | BetterPlan | PlaceFailed)
        return event

    _, effects = play(choose, LimitsSection(restarts=restarts), 60)
    assert times(effects, Start) <= restarts.rank + restarts.node + restarts.preemption + 1 + moves
    assert times(effects, Kill, Recall) <= times(effects, Start)
    assert times(effects, Release) <= 1


@given(st.data(), budgets)
def test_every_job_ends_once_its_gangs_keep_failing(data, restarts):
    failures = st.sampled_from(
        [
            *(RankExited(0, 1, 0), RankFailed(1, "rank", "reset"), TimedOut("start", (0,), 1.0, 0), StopRequested()),
            *(RankLost(0, "gone"), RankLost(1, "gone", "preemption"), RankFailed(0, "memory", "too little")),
        ]
    )
    noise = st.one_of(st.sampled_from([Started(0), StepDone(1), Saved(TWO), Placed(), KillDone(NONE)]), WISHES)
    turn = iter(range(10000))

    def choose(what):
        return data.draw(failures if next(turn) % 2 else noise) if what == "event" else data.draw(st.booleans())

    state, effects = play(choose, LimitsSection(restarts=restarts), 16 * (restarts.rank + restarts.node + restarts.preemption + 1))
    assert isinstance(state, Finished | Failed)
    assert effects[-1] == Release()


@given(st.lists(st.sampled_from(list(EVENTS.values())), max_size=20), st.sampled_from(["finished", "failed"]))
def test_a_job_that_ended_stays_as_it_is(events, name):
    for event in events:
        assert react(STATES[name], event, LIMITS) == (STATES[name], ())


def test_steps_in_between_give_no_restart_back():
    state = Placing(replace(LAST, step=0, checkpoint=NONE))
    for event in (Placed(), Started(0), *(StepDone(n) for n in range(1, 500)), RankExited(0, 1, 0), KillDone(NONE)):
        state, effects = react(state, event, LIMITS)
    assert isinstance(state, Failed)
    assert effects == (Release(),)


@pytest.mark.parametrize(
    ("failure", "field"),
    [
        (RankExited(0, 1, 0), "limits.restarts.rank"),
        (RankFailed(0, "memory", "too little"), "limits.restarts.rank"),
        (RankLost(0, "gone"), "limits.restarts.node"),
        (RankLost(0, "gone", "preemption"), "limits.restarts.preemption"),
    ],
)
def test_each_kind_of_failure_has_its_budget(failure, field):
    section = RestartsSection(rank=1, node=2, preemption=3)
    limits, state, starts = LimitsSection(restarts=section), Running(AT), 0
    while not isinstance(state, Failed):
        for event in (failure, KillDone(TWO), Planned(OLD), Placed(), Started(2)):
            state, _ = react(state, event, limits)
        starts += 1
    assert starts - 1 == getattr(section, field.rpartition(".")[2])
    assert state.message.endswith(f"{field} ({starts - 1}) is spent")
    assert react(Running(AT), RankFailed(0, "user", "bad"), limits)[1] == (Kill(),)


def test_nan_is_tried_once_more_and_again_at_another_step():
    state = Running(replace(AT, step=7))
    for event in (RankFailed(0, "nan", "nan"), KillDone(FIVE), Placed(), Started(5), StepDone(6), StepDone(7), StepDone(8)):
        state, _ = react(state, event, LIMITS)
    assert isinstance(state, Running)
    for event in (RankFailed(0, "nan", "nan"), KillDone(FIVE), Placed(), Started(5), StepDone(8)):
        state, _ = react(state, event, LIMITS)
    assert isinstance(state, Running)
    for event in (RankFailed(0, "nan", "nan"), KillDone(FIVE)):
        state, _ = react(state, event, LIMITS)
    assert isinstance(state, Failed)
    assert "a second time after step 8" in state.message
