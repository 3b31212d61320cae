"""The loop on a scripted group, watched by what may move it: when the planner is asked, and what comes of it."""

import math
import threading
import time

import pytest
from fake_group import FakeGroup, done, launch, saved, started

from rayplane.control import mover as mover_module
from rayplane.control import slow_watch as slow_watch_module
from rayplane.control.leeway import Leeway
from rayplane.control.loop import Controller
from rayplane.control.mover import Mover
from rayplane.control.outlook import Outlook
from rayplane.control.question import Question
from rayplane.control.slow_watch import SlowWatch
from rayplane.control.state import Arrangement
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.errors import RayplaneError
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.job import LimitsSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement, Workload

MODEL = ModelSpec(layers=2, hidden=64, heads=1, kv_heads=1, head_dim=64, mlp=64, vocab=64)
LEEWAY = Leeway(MODEL, Workload(8, 16, "fp32"), None)
TWO = homogeneous({"here": 2}, "cpu", 10**10, {})
BETTER = Arrangement(Layout(dp=2, micro_batch=2, boundaries=(2,)), Placement(()), 0.5)


def step(number, compute_s=(0.6, 0.6)):
    shared = {"type": "step", "stage": 0, "step": number, "loss": 1.0 / number, "grad_norm": 1.0, "lr": 0.1}
    words = []
    for rank, seconds in enumerate(compute_s):
        phases = {"forward": seconds / 3, "backward": 2 * seconds / 3, "dp": 0.4}
        cost = {"tokens": 64, "wall_s": 1.0, "phases": phases, "comm_bytes": {}}
        words.append((rank, {**shared, **cost, "rank": rank, "replica": rank}))
    return words


def steps(first, last, compute_s=(0.6, 0.6)):
    """Each a moment after the one before: threads get their turn."""
    out = []
    for number in range(first, last + 1):
        out += [step(number, compute_s), lambda: time.sleep(0.005)]
    return out


@pytest.fixture
def asked(monkeypatch):
    """What the planner is asked, and in which thread; its answers."""

    class Planner:
        def __init__(self):
            self.calls, self.answer = [], Outlook(1.0, BETTER)

        def look(self, leeway, now, cluster, seen):
            self.calls.append((now.layout, threading.current_thread().name))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    planner = Planner()
    monkeypatch.setattr(mover_module, "look", planner.look)
    monkeypatch.setattr(mover_module, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(mover_module, "SHARE", 1e9)
    return planner


def run(tmp_path, group, total=10**6, see=None, watches=()):
    mover = Mover(LEEWAY, total, lambda: TWO, see, steady_s=0.0)
    task = Task(tmp_path, total, LimitsSection(restarts=0), launch())
    return Controller(task, group, (mover, *watches), (mover, *watches)).run(Stop())


def test_a_better_plan_drains_the_gang_and_the_next_attempt_has_its_layout(tmp_path, asked):
    drained = [saved(tmp_path, 40), done(40, drained=True)]
    group = FakeGroup([started(), *steps(1, 40)], [started(step=40), *steps(41, 60), done(60)], drained=drained)
    result = run(tmp_path, group)
    assert result.state == "finished" and result.restarts == 0
    assert group.calls == ["start", "drain", "start", "close", "close"]
    assert [launch.layout for launch in group.launches] == [launch().layout, BETTER.layout]
    assert group.launches[1].config["resume"].endswith("step-00000040")
    assert {name for _, name in asked.calls} == {"question"}
    assert len(asked.calls) == 2, "two looks that agree; then the cool-down"


def test_a_job_grows_to_devices_that_have_come(tmp_path, asked):
    wide = Arrangement(Layout(dp=4, micro_batch=2, boundaries=(2,)), Placement(()), 0.5)
    asked.answer = Outlook(1.0, None, wide)
    drained = [saved(tmp_path, 40), done(40, drained=True)]
    grown = [started(size=4, step=40), *steps(41, 44, (0.3,) * 4), done(44, size=4)]
    group = FakeGroup([started(), *steps(1, 40)], grown, drained=drained)
    result = run(tmp_path, group)
    assert (result.state, result.step, len(result.stages)) == ("finished", 44, 4)
    assert group.launches[1].layout == wide.layout


@pytest.mark.parametrize(
    "answer",
    [Outlook(1.0), Outlook(1.0, Arrangement(BETTER.layout, Placement(()), 0.99)), RayplaneError("no"), ValueError("a fault of ours")],
    ids=["nothing", "hardly better", "planner refuses", "planner breaks"],
)
def test_without_a_better_plan_nothing_moves(tmp_path, asked, answer):
    asked.answer = answer
    group = FakeGroup([started(), *steps(1, 40), done(40)])
    assert run(tmp_path, group).state == "finished"
    assert group.calls == ["start", "close", "close"] and asked.calls


@pytest.mark.parametrize("odd", [math.nan, 0.0, math.inf])
def test_on_what_is_no_number_the_planner_is_not_even_asked(tmp_path, asked, odd):
    group = FakeGroup([started(), *steps(1, 40, (0.6, odd)), done(40)])
    assert run(tmp_path, group).state == "finished"
    assert not asked.calls


def test_metrics_that_cannot_be_had_hold_it_and_are_told_once(tmp_path, asked, caplog):
    def see():
        raise RayplaneError("http://prometheus:9090 does not answer within 10 s")

    group = FakeGroup([started(), *steps(1, 40), done(40)])
    assert run(tmp_path, group, see=see).state == "finished"
    assert not asked.calls and caplog.text.count("prometheus:9090 does not answer") == 1


def test_near_the_end_nobody_asks(tmp_path, asked):
    group = FakeGroup([started(), lambda: time.sleep(0.2), *steps(1, 40), done(40)])
    task = Task(tmp_path, 40, LimitsSection(restarts=0), launch())
    mover = Mover(LEEWAY, 0, lambda: TWO, steady_s=0.0)
    assert Controller(task, group, (mover,), (mover,)).run(Stop()).state == "finished"
    assert not asked.calls


@pytest.mark.parametrize("spare", [True, False])
def test_a_straggler_is_named_and_replaced_where_there_is_a_spare(tmp_path, monkeypatch, spare):
    monkeypatch.setattr(slow_watch_module, "PATIENCE_S", 0.0)
    watch = SlowWatch(8, 1.5, lambda arrangement, rank: spare)
    slow = [started(), saved(tmp_path, 1), *steps(1, 25, (0.6, 1.8)), *([] if spare else [done(25)])]
    group = FakeGroup(slow, [started(step=1), *steps(2, 5), done(5)])
    task = Task(tmp_path, 25, LimitsSection(restarts=1), launch())
    result = Controller(task, group, (watch,), (watch,)).run(Stop())
    assert result.state == "finished" and result.restarts == int(spare)
    assert group.blamed == ([[1]] if spare else [])
    assert (tmp_path / "events.jsonl").read_text().count("RankSlow") == 1


def test_a_question_is_answered_in_a_thread_of_its_own():
    go = threading.Event()
    question = Question(lambda: go.wait(10) and 7)
    assert not question.answered
    go.set()
    while not question.answered:
        time.sleep(0.001)
    assert question.answer() == 7
    failed = Question(lambda: 1 / 0)
    while not failed.answered:
        time.sleep(0.001)
    with pytest.raises(ZeroDivisionError):
        failed.answer()
