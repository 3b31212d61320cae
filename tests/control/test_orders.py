"""Orders through a job's folder, on a scripted group: each is carried out once, and answered."""

import os
import stat
import threading

import pytest
from fake_group import FakeGroup, done, exited, launch, saved, started, step

from rayplane.control.loop import Controller
from rayplane.control.mailbox import OLD, Mailbox
from rayplane.control.order import Order
from rayplane.control.orders import Orders
from rayplane.control.state import Arrangement
from rayplane.control.status import read_status
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.errors import PlacementError, RayplaneError
from rayplane.spec.job import LimitsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

ONE = Arrangement(Layout(dp=1, boundaries=(2,)), Placement(()))


class Planner:
    """Knows one place."""

    def __init__(self, found=ONE):
        self.found, self.asked, self.taken = found, [], []

    def arrangement(self, order, now):
        self.asked.append(order)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def accepted(self, order):
        self.taken.append(order)


class User:
    """Gives orders where a script calls it, and reads the answers."""

    def __init__(self, folder):
        self.box, self.keys = Mailbox(folder), []

    def gives(self, verb, number=0):
        return lambda: self.keys.append(self.box.put(Order(verb, number)))

    @property
    def answers(self):
        return [(answer.done, answer.message) if (answer := self.box.answer(key)) else None for key in self.keys]


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)


def run(tmp_path, group, planner=None, stop=None, restarts=3):
    box = Mailbox(tmp_path)
    box.open()
    task = Task(tmp_path, 9, LimitsSection(restarts=restarts), launch())
    with Orders(box, planner or Planner(), look_s=0.0) as orders:
        return Controller(task, group, [orders], [orders]).run(stop or Stop())


def later(call):
    """Calls from another thread, soon: a paused job has no ranks whose scripts could."""
    return threading.Timer(0.1, call)


def test_a_paused_job_has_no_places_and_goes_on_from_where_it_was(tmp_path, user):
    seen = []

    class Watch(Planner):
        pass

    group = FakeGroup(
        [started(), step(1), user.gives("pause")],
        [started(step=2), step(3), done(3)],
        drained=[step(2), saved(tmp_path, 2), done(2, drained=True)],
    )

    def resume():
        seen.extend([read_status(tmp_path).state, list(group.calls)])
        user.gives("resume")()

    timer = later(resume)
    group.close = lambda close=group.close: (close(), timer.is_alive() or timer.ident or timer.start())
    result = run(tmp_path, group)
    assert seen == ["paused", ["start", "drain", "close"]]
    assert (result.state, result.step, result.restarts) == ("finished", 3, 0)
    assert group.launches[1].config["resume"].endswith("step-00000002")
    assert user.answers == [(True, "it is paused after step 2; rayplane resume goes on"), (True, "it goes on from step 2")]


def test_a_driver_that_is_stopped_while_paused_ends_as_drained(tmp_path, user):
    stop = Stop()
    group = FakeGroup([started(), user.gives("pause")], drained=[step(1), saved(tmp_path, 1), done(1, drained=True)])
    timer = later(stop.request)
    group.close = lambda close=group.close: (close(), timer.ident or timer.start())
    result = run(tmp_path, group, stop=stop)
    assert (result.state, result.exit_code, result.step) == ("drained", 0, 1)


def test_stop_saves_and_is_answered_when_the_job_has_ended(tmp_path, user):
    group = FakeGroup([started(), step(1), user.gives("stop")], drained=[step(2), saved(tmp_path, 2), done(2, drained=True)])
    result = run(tmp_path, group)
    assert (result.state, result.exit_code) == ("drained", 0)
    assert user.answers == [(True, "it stopped after step 2")]


def test_a_second_order_to_stop_does_not_cost_the_save(tmp_path, user):
    group = FakeGroup(
        [started(), step(1), user.gives("stop")], drained=[user.gives("stop"), step(2), saved(tmp_path, 2), done(2, drained=True)]
    )
    assert run(tmp_path, group).state == "drained"
    assert user.answers == [(True, "it stopped after step 2")] * 2


def test_stop_now_kills(tmp_path, user):
    group = FakeGroup([started(), step(1), user.gives("kill")])
    result = run(tmp_path, group)
    assert group.calls == ["start", "drain", "kill", "close", "close"]
    assert result.exit_code == 130
    assert user.answers == [(True, "it ended after step 1: stopped before the last steps were saved")]


def test_a_layout_moves_the_job_and_is_answered_when_it_trains_so(tmp_path, user):
    planner, patience = Planner(), [lambda: threading.Event().wait(0.01)] * 100
    group = FakeGroup(
        [started(), step(1), user.gives("layout"), *patience],
        [started(size=1, step=2), step(3, ranks=[0]), done(3, size=1)],
        drained=[step(2), saved(tmp_path, 2), done(2, drained=True)],
    )
    result = run(tmp_path, group, planner)
    assert [one.layout.dp for one in group.launches] == [2, 1]
    assert (result.state, result.step, result.restarts) == ("finished", 3, 0)
    assert user.answers == [(True, f"it trains from step 2 under {ONE.layout}")]
    assert planner.asked == planner.taken == [Order("layout")]


def test_what_the_planner_refuses_is_refused_with_its_reason_and_the_job_goes_on(tmp_path, user):
    planner, patience = Planner(PlacementError("needs 8 devices, the cluster has 2")), [lambda: threading.Event().wait(0.01)] * 100
    group = FakeGroup([started(), step(1), user.gives("scale", 8), *patience, step(2), done(2)])
    assert run(tmp_path, group, planner).state == "finished"
    assert user.answers == [(False, "needs 8 devices, the cluster has 2")]
    assert planner.taken == []


def test_a_planner_that_fails_does_not_cost_the_job(tmp_path, user, caplog):
    patience = [lambda: threading.Event().wait(0.01)] * 100
    group = FakeGroup([started(), step(1), user.gives("layout"), *patience, step(2), done(2)])
    assert run(tmp_path, group, Planner(ZeroDivisionError("broken"))).state == "finished"
    assert [done for done, _ in user.answers] == [False]
    assert "broken" in caplog.text


def test_a_move_that_a_failure_overtakes_is_refused(tmp_path, user):
    patience = [lambda: threading.Event().wait(0.01)] * 100
    group = FakeGroup(
        [started(), step(1), user.gives("layout"), *patience],
        [started(), step(1), done(1)],
        drained=[[(1, exited(-9, 9))]],
    )
    assert run(tmp_path, group).state == "finished"
    assert user.answers == [(False, f"something else came first: the job is running under {launch().layout}")]


def test_an_order_to_pause_or_stop_ends_a_wait_for_places(tmp_path, user):
    group = FakeGroup(busy=user.gives("stop"))
    assert run(tmp_path, group).state == "drained"
    assert user.answers == [(True, "it stopped after step 0")]


def test_an_order_that_the_end_overtakes_is_told_so(tmp_path, user):
    group = FakeGroup([started(), step(1), [*done(1)]])
    group.close = lambda close=group.close: (close(), user.keys or user.gives("pause")())
    assert run(tmp_path, group).state == "finished"
    assert user.answers == [(False, "the job's driver has ended: the job is finished")]


def test_what_was_left_for_an_earlier_controller_is_refused_not_done(tmp_path, user):
    box = Mailbox(tmp_path)
    box.open()
    user.gives("stop")()
    group = FakeGroup([started(), step(1), step(2), done(2)])
    assert run(tmp_path, group).step == 2
    assert user.answers == [(OLD.done, OLD.message)]


def test_orders_are_taken_once_and_oldest_first(tmp_path, user):
    user.box.open()
    for verb in ("pause", "resume", "stop"):
        user.gives(verb)()
    taken = user.box.take()
    assert [order.verb for _, order in taken] == ["pause", "resume", "stop"]
    assert [key for key, _ in taken] == user.keys
    assert user.box.take() == [] and not user.box.withdraw(user.keys[0])


def test_an_order_that_is_withdrawn_is_not_taken(tmp_path, user):
    user.box.open()
    user.gives("stop")()
    assert user.box.withdraw(user.keys[0])
    assert user.box.take() == []


def test_only_the_owner_may_read_orders_and_a_half_written_one_is_none(tmp_path, user):
    user.box.open()
    user.gives("pause")()
    (path,) = (tmp_path / "orders").glob("*.order")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.with_name("9.order.tmp").write_text("{")
    path.with_name("9.order").write_text('{"verb": "explode"}')
    (_, pause), (_, wrong) = user.box.take()
    assert pause == Order("pause")
    assert not wrong.done and "verb" in wrong.message


def test_a_folder_that_takes_no_orders_says_so(tmp_path, user):
    with pytest.raises(RayplaneError, match=r"orders takes no order: No such file or directory"):
        user.gives("pause")()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_hold_orders_does_not_cost_the_job(tmp_path, caplog):
    tmp_path.chmod(0o500)
    Mailbox(tmp_path).open()
    assert "takes no orders" in caplog.text
