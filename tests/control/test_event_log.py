"""What a journal writes is read back as it was, and plays through the machine to the same states."""

import json
from dataclasses import replace
from typing import get_args

import pytest
from fake_group import FakeGroup, done, exited, launch, saved, started, step
from hypothesis import given
from hypothesis import strategies as st
from test_machine import AT, EVENTS, LIMITS, NEW, OLD

from rayplane.control.event import BetterPlan, Event, Planned, StepDone, Submitted
from rayplane.control.event_log import opening, read_log
from rayplane.control.journal import Journal
from rayplane.control.loop import Controller
from rayplane.control.machine import react
from rayplane.control.replay import replayed
from rayplane.control.state import Arrangement, Pending
from rayplane.control.status import state_name
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.errors import RayplaneError
from rayplane.spec.job import LimitsSection, RestartsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

WIDE = Arrangement(
    Layout(dp=2, pp=2, tp=2, sp=True, schedule="zbv", vpp=2, boundaries=(3, 3, 2, 0)),
    Placement(tuple(Slot(r, s, 0, (4 * r + 2 * s, 4 * r + 2 * s + 1), f"gpu-{r}", "a") for r in (0, 1) for s in (0, 1))),
    0.125,
)


def written(folder, events, limits=LIMITS):
    """A log of these events with the states that the machine gives them."""
    journal, state = Journal(folder, opening=opening(limits)), Pending()
    for unix_s, event in enumerate(events):
        state, _ = react(state, event, limits)
        journal.event(state_name(state), event, unix_s)
    journal.close()
    return folder / "events.jsonl"


def test_every_event_is_read_back_as_it_was_written(tmp_path):
    events = [*EVENTS.values(), Submitted(AT.checkpoint, WIDE), BetterPlan(WIDE, "a reason"), StepDone(3, float("inf"))]
    assert {type(event) for event in events} == set(get_args(Event))
    (run,) = read_log(written(tmp_path, events))
    assert [line.event for line in run.lines] == events
    assert (run.limits, run.faults, run.torn) == (LIMITS, [], False)
    assert [line.number for line in run.lines] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("limits", [LimitsSection(), LimitsSection(restarts=RestartsSection(rank=1), min_devices=2, replan=False)])
def test_limits_are_in_the_log(tmp_path, limits):
    (run,) = read_log(written(tmp_path, [Submitted(AT.checkpoint, OLD)], limits))
    assert run.limits == limits


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=40))
def test_any_run_replays_to_the_states_of_its_log(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("log")
    (run,) = read_log(written(folder, [Submitted(AT.checkpoint, OLD), *(EVENTS[name] for name in names)]))
    assert not any(turn.differs for turn in replayed(run))


def test_the_log_of_a_controller_replays_and_a_line_that_is_missing_is_noticed(tmp_path):
    first = [started(), step(1), saved(tmp_path, 1), step(2), [(1, exited(-9, 9))]]
    group = FakeGroup(first, [started(step=1), step(2), step(3), done(3)])
    Controller(Task(tmp_path, 3, LIMITS, launch()), group).run(Stop())
    path = tmp_path / "events.jsonl"
    turns = replayed(read_log(path)[0])
    assert not any(turn.differs for turn in turns)
    last = turns[-1].state
    assert (state_name(last), last.progress.step, last.progress.attempt, last.progress.spent.rank) == ("finished", 3, 2, 1)
    assert [type(effect).__name__ for turn in turns for effect in turn.effects] == ["Start", "Recall", "Start", "Release"]
    lines = path.read_text().splitlines(keepends=True)
    (death,) = [i for i, line in enumerate(lines) if "RankExited" in line]
    path.write_text("".join(lines[:death] + lines[death + 1 :]))
    assert any(turn.differs for turn in replayed(read_log(path)[0]))


def test_an_arrangement_is_written_out_once_in_a_run(tmp_path):
    slots = tuple(Slot(i // 4, i % 4, 0, (2 * i, 2 * i + 1), f"gpu-{i // 4}", "a") for i in range(1000))
    large = Arrangement(Layout(dp=250, pp=4, tp=2, boundaries=(2, 2, 2, 2)), Placement(slots))
    path = written(tmp_path, [Submitted(AT.checkpoint, large), *[Planned(large)] * 50, BetterPlan(NEW, ""), BetterPlan(large, "")])
    sizes = [len(line) for line in path.read_text().splitlines()]
    assert sizes[0] < 40_000 and max(sizes[1:]) < 300
    (run,) = read_log(path)
    assert [line.event.arrangement for line in run.lines] == [large] * 51 + [NEW, large]


def test_a_line_nested_too_deeply_is_a_line_that_is_none(tmp_path):
    path = written(tmp_path, [Submitted(AT.checkpoint, WIDE), EVENTS["placed"], EVENTS["started"]])
    whole = path.read_text()
    path.write_text(whole + "[" * 100_000)
    (run,) = read_log(path)
    assert run.torn and len(run.lines) == 3


def test_runs_are_told_apart_and_a_half_written_last_line_is_borne(tmp_path):
    path = written(tmp_path, [Submitted(AT.checkpoint, WIDE), EVENTS["placed"], EVENTS["started"]])
    path.write_text(path.read_text()[:-30])
    (run,) = read_log(path)
    assert run.torn and len(run.lines) == 2 and not run.faults
    written(tmp_path, [Submitted(AT.checkpoint, OLD), EVENTS["placed"]])
    first, second = read_log(path)
    assert [len(first.lines), len(second.lines)] == [2, 2]
    assert second.lines[0].event.arrangement == OLD
    assert not (first.torn or first.faults or second.faults)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("no json", "line 2: is no JSON object"),
        ('{"unix_s": 1, "event": "Exploded", "state": "x"}', "line 2: event 'Exploded' is not known"),
        ('{"unix_s": 1, "event": "StepDone", "step": "x", "state": "x"}', "line 2: step: Input should be a valid integer"),
        ('{"unix_s": 1, "event": "Placed"}', "line 2: 'state' is missing"),
        ('{"unix_s": 1, "event": "Planned", "arrangement": {"id": 7}, "state": "x"}', "line 2: 7 is missing"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(tmp_path, damage, fault):
    path = written(tmp_path, [Submitted(AT.checkpoint, OLD), EVENTS["placed"], EVENTS["started"]])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damage, *lines[2:], ""]))
    (run,) = read_log(path)
    assert len(run.lines) == 2 and [f.startswith(fault) for f in run.faults] == [True]


def test_a_log_of_another_version_and_one_without_any_are_refused(tmp_path):
    path = written(tmp_path, [Submitted(AT.checkpoint, OLD)])
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "run": {**line["run"], "version": 99}}) + "\n")
    with pytest.raises(RayplaneError, match=r"events.jsonl:1: the log has version 99, this rayplane reads version 1"):
        read_log(path)
    path.write_text(json.dumps({k: v for k, v in line.items() if k != "run"}) + "\n")
    with pytest.raises(RayplaneError, match="nothing of it can be replayed"):
        read_log(path)
    with pytest.raises(RayplaneError, match=r"name an events.jsonl, or the folder of a job"):
        read_log(tmp_path / "nothing")


def test_what_the_log_says_of_a_state_is_held_against_the_machine(tmp_path):
    path = written(tmp_path, [Submitted(AT.checkpoint, OLD), EVENTS["placed"]])
    path.write_text(path.read_text().replace('"starting"', '"running"'))
    turns = replayed(read_log(path)[0])
    assert [turn.differs for turn in turns] == [False, True]
    assert turns[1] == replace(turns[1], effects=())
