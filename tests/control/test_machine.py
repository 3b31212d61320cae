"""Every (state, event) pair has its line here; what is not in CHANGES must leave the state as it is."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import (
    GangDone,
    KillDone,
    Placed,
    PlaceFailed,
    RankExited,
    RankFailed,
    Saved,
    Started,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.machine import GATHER_S, INTERRUPTED, react
from rayplane.control.state import (
    Drain,
    Draining,
    Failed,
    Failure,
    Finished,
    Kill,
    Killing,
    Pending,
    Placing,
    Progress,
    Release,
    Running,
    Start,
    Starting,
)
from rayplane.spec.job import LimitsSection

LIMITS = LimitsSection(restarts=2)
NONE, TWO, FIVE = Checkpoint(), Checkpoint(2, "run/step-00000002"), Checkpoint(5, "run/step-00000005")
AT = Progress(attempt=1, step=3, checkpoint=TWO)
LAST = Progress(attempt=3, step=3, checkpoint=TWO)
DEAD = Failure((1,), "was killed by SIGKILL")
ALSO = Failure((0,), "Connection closed by peer", consequence=True)
BAD_DATA = Failure((0,), "no such file", user=True)
SILENT = {
    "start": Failure((1,), "not ready within 9 s"),
    "step": Failure((1,), "no step after step 3 within 9 s"),
    "drain": Failure((1,), "did not save within 9 s"),
}

STATES = {
    "pending": Pending(),
    "placing": Placing(AT),
    "starting": Starting(AT),
    "running": Running(AT),
    "draining": Draining(AT),
    "killing": Killing(AT, (DEAD,), "retry"),
    "killing, budget spent": Killing(LAST, (DEAD,), "retry"),
    "killing, user error": Killing(AT, (BAD_DATA,), "retry"),
    "killing, to stop": Killing(AT, (), "stop"),
    "killing, failed draining": Killing(AT, (DEAD,), "stop"),
    "killing, interrupted": Killing(AT, (), "interrupt"),
    "finished": Finished(AT, drained=False),
    "failed": Failed(AT, "why", 1),
}
EVENTS = {
    "submitted": Submitted(TWO),
    "placed": Placed(),
    "place failed": PlaceFailed("too small"),
    "spawn failed": PlaceFailed("actor lost", retry=True),
    "started": Started(2),
    "step done": StepDone(4),
    "saved": Saved(FIVE),
    "gang done": GangDone(5, drained=False),
    "gang drained": GangDone(4, drained=True),
    "rank failed": RankFailed(0, "rank", "Connection closed by peer"),
    "user failed": RankFailed(0, "user", "no such file"),
    "rank exited": RankExited(1, 0, 9),
    "start timeout": TimedOut("start", (1,), 9.0, 3),
    "step timeout": TimedOut("step", (1,), 9.0, 3),
    "drain timeout": TimedOut("drain", (1,), 9.0, 3),
    "stop": StopRequested(),
    "kill done": KillDone(FIVE),
}
KEPT = Progress(1, 3, FIVE)
AGAIN = (Placing(Progress(2, 5, FIVE)), (Start(2, FIVE),))


def failing(then):
    """What each failure does to a live gang."""
    return {
        "rank failed": (Killing(AT, (ALSO,), then), (Kill(GATHER_S),)),
        "user failed": (Killing(AT, (BAD_DATA,), then), (Kill(),)),
        "rank exited": (Killing(AT, (DEAD,), then), (Kill(),)),
        **{f"{kind} timeout": (Killing(AT, (failure,), then), (Kill(),)) for kind, failure in SILENT.items()},
    }


def progressing(state):
    """What progress does to a gang that trains."""
    return {
        "step done": (state(Progress(1, 4, TWO)), ()),
        "saved": (state(Progress(1, 3, FIVE)), ()),
        "gang done": (Finished(Progress(1, 5, TWO), drained=False), (Release(),)),
        "gang drained": (Finished(Progress(1, 4, TWO), drained=True), (Release(),)),
    }


def gathering(progress, failures, then):
    """Failures that come while the gang is being killed are added, one per rank."""
    known = {rank for f in failures for rank in f.ranks}
    late = {"rank failed": ALSO, "user failed": BAD_DATA, "rank exited": DEAD}
    return {name: (Killing(progress, (*failures, f), then), ()) for name, f in late.items() if not known.issuperset(f.ranks)}


CHANGES = {
    "pending": {
        "submitted": (Placing(Progress(1, 2, TWO)), (Start(1, TWO),)),
        "stop": (Finished(Progress(), drained=True), (Release(),)),
    },
    "placing": {
        "placed": (Starting(AT), ()),
        "place failed": (Failed(AT, "too small", 1), (Release(),)),
        "spawn failed": (Killing(AT, (Failure((), "actor lost"),), "retry"), (Kill(),)),
        "stop": (Killing(AT, (), "stop"), (Kill(),)),
        **failing("retry"),
    },
    "starting": {
        "started": (Running(Progress(1, 2, TWO)), ()),
        "stop": (Killing(AT, (), "stop"), (Kill(),)),
        **failing("retry"),
    },
    "running": {"stop": (Draining(AT), (Drain(),)), **progressing(Running), **failing("retry")},
    "draining": {"stop": (Killing(AT, (), "interrupt"), (Kill(),)), **progressing(Draining), **failing("stop")},
    "killing": {**gathering(AT, (DEAD,), "retry"), "stop": (Killing(AT, (DEAD,), "stop"), ()), "kill done": AGAIN},
    "killing, budget spent": {
        **gathering(LAST, (DEAD,), "retry"),
        "stop": (Killing(LAST, (DEAD,), "stop"), ()),
        "kill done": (Failed(Progress(3, 3, FIVE), "rank 1 was killed by SIGKILL; limits.restarts (2) is spent", 1), (Release(),)),
    },
    "killing, user error": {
        **gathering(AT, (BAD_DATA,), "retry"),
        "stop": (Killing(AT, (BAD_DATA,), "stop"), ()),
        "kill done": (Failed(KEPT, "rank 0: no such file", 1), (Release(),)),
    },
    "killing, to stop": {
        **gathering(AT, (), "stop"),
        "kill done": (Finished(Progress(1, 5, FIVE), drained=True), (Release(),)),
    },
    "killing, failed draining": {
        **gathering(AT, (DEAD,), "stop"),
        "kill done": (Failed(KEPT, "failed before the last steps were saved: rank 1 was killed by SIGKILL", 1), (Release(),)),
    },
    "killing, interrupted": {
        **gathering(AT, (), "interrupt"),
        "kill done": (Failed(KEPT, "stopped before the last steps were saved", INTERRUPTED), (Release(),)),
    },
    "finished": {},
    "failed": {},
}


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_every_event_in_every_state(state, event):
    expected = CHANGES[state].get(event, (STATES[state], ()))
    assert react(STATES[state], EVENTS[event], LIMITS) == expected


def test_the_tables_cover_all_states_and_events():
    assert {type(s) for s in STATES.values()} == {Pending, Placing, Starting, Running, Draining, Killing, Finished, Failed}
    assert set(CHANGES) == set(STATES)
    assert all(set(changes) <= set(EVENTS) for changes in CHANGES.values())


def play(choose, limits, max_events):
    """A job whose world answers effects at once; in between `choose` says what comes. Gives the states and effects."""
    state, starts, kills = Pending(), 0, 0
    state, effects = react(state, Submitted(NONE), limits)
    for _ in range(max_events):
        for effect in effects:
            match effect:
                case Start():
                    starts += 1
                    event = Placed()
                case Kill():
                    kills += 1
                    event = KillDone(TWO)
                case Drain():
                    event = GangDone(3, drained=True) if choose("drains") else StopRequested()
                case Release():
                    return state, starts, kills
            break
        else:
            event = choose("event")
        state, effects = react(state, event, limits)
    return state, starts, kills


WILD = st.sampled_from(
    [
        *(Placed(), Started(0), StepDone(1), Saved(TWO), StopRequested(), GangDone(9, drained=False)),
        *(RankExited(0, 1, 0), RankFailed(1, "rank", "reset"), RankFailed(0, "user", "bad"), TimedOut("step", (0,), 1.0, 1)),
    ]
)


@given(st.data(), st.integers(0, 4))
def test_budgets_are_respected_whatever_comes(data, restarts):
    def choose(what):
        return data.draw(WILD if what == "event" else st.booleans())

    _, starts, kills = play(choose, LimitsSection(restarts=restarts), 60)
    assert starts <= restarts + 1
    assert kills <= starts


@given(st.data(), st.integers(0, 4))
def test_every_job_ends_once_its_gangs_keep_failing(data, restarts):
    failures = st.sampled_from([RankExited(0, 1, 0), RankFailed(1, "rank", "reset"), TimedOut("start", (0,), 1.0, 0), StopRequested()])
    noise = st.sampled_from([Started(0), StepDone(1), Saved(TWO), Placed(), KillDone(NONE)])
    turn = iter(range(1000))

    def choose(what):
        return data.draw(failures if next(turn) % 2 else noise) if what == "event" else data.draw(st.booleans())

    state, _, _ = play(choose, LimitsSection(restarts=restarts), 12 * (restarts + 1))
    assert isinstance(state, Finished | Failed)


@given(st.lists(st.sampled_from(list(EVENTS.values())), max_size=20), st.sampled_from(["finished", "failed"]))
def test_a_job_that_ended_stays_as_it_is(events, name):
    for event in events:
        assert react(STATES[name], event, LIMITS) == (STATES[name], ())


def test_steps_in_between_give_no_restart_back():
    state = Placing(Progress(3, 0, NONE))
    for event in (Placed(), Started(0), *(StepDone(n) for n in range(1, 500)), RankExited(0, 1, 0), KillDone(NONE)):
        state, effects = react(state, event, LIMITS)
    assert isinstance(state, Failed)
    assert effects == (Release(),)
