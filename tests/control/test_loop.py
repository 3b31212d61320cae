"""The loop on a scripted group: what it starts, kills, saves and reports."""

import json

import pytest
from fake_group import FakeGroup, done, exited, failed, launch, save, saved, started, step

from rayplane.control import journal as journal_module
from rayplane.control import loop as loop_module
from rayplane.control.loop import Controller
from rayplane.control.status import read_status
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.errors import PlacementError, RayplaneError
from rayplane.spec.job import LimitsSection


class Watcher:
    def __init__(self):
        self.events, self.steps = [], []

    def on_event(self, state, event):
        self.events.append((type(event).__name__, type(state).__name__))

    def on_step(self, reports):
        self.steps.append([(r.rank, r.step) for r in reports])


@pytest.fixture
def clock(monkeypatch):
    """Time stands still unless a script moves it."""

    class Clock:
        now_s = 100.0

        def monotonic(self):
            return self.now_s

        def time(self):
            return self.now_s

        def forward(self, seconds):
            self.now_s += seconds

    clock = Clock()
    monkeypatch.setattr(loop_module, "time", clock)
    return clock


def run(tmp_path, group, steps=4, restarts=3, stop=None, observers=()):
    task = Task(tmp_path, steps, LimitsSection(restarts=restarts, step_timeout_s=60.0), launch(), {"layers": 2}, start_timeout_s=90.0)
    result = Controller(task, group, observers).run(stop or Stop())
    assert group.calls[-1] == "close"
    return result


def resumes(group):
    return [launch.config["resume"].rsplit("/", 1)[-1] for launch in group.launches]


def test_a_whole_run(tmp_path):
    watcher = Watcher()
    group = FakeGroup([started(holdout=5.5), step(1), step(2), saved(tmp_path, 2), step(3), step(4), done(4, holdout=2.5)])
    result = run(tmp_path, group, observers=[watcher])
    assert (result.state, result.exit_code, result.step, result.restarts, result.params) == ("finished", 0, 4, 0, 10)
    assert (result.holdout_before, result.holdout_after, result.final_loss) == (5.5, 2.5, 0.25)
    assert result.tokens_per_s == 64.0
    assert [(s.replica, s.stage) for s in result.stages] == [(0, 0), (1, 0)]
    assert result.stages[0].compute == pytest.approx(0.6)
    assert result.checkpoint.endswith("step-00000002")
    assert watcher.steps == [[(0, n), (1, n)] for n in range(1, 5)]
    assert watcher.events[0] == ("Submitted", "Placing")
    assert watcher.events[-1] == ("GangDone", "Finished")
    assert group.calls == ["start", "close", "close"]


def test_a_step_is_done_when_its_last_rank_is(tmp_path):
    watcher = Watcher()
    group = FakeGroup([started(), step(1, ranks=[1]), step(2, ranks=[1]), step(1, ranks=[0]), step(2, ranks=[0]), done(2)])
    run(tmp_path, group, observers=[watcher])
    assert watcher.steps == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]


def test_state_and_events_are_left_in_the_folder(tmp_path):
    run(tmp_path, FakeGroup([started(), step(1), saved(tmp_path, 1), done(1)]))
    status = read_status(tmp_path)
    assert (status.state, status.step, status.steps, status.model) == ("finished", 1, 4, {"layers": 2})
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["Submitted", "Placed", "Started", "StepDone", "Saved", "GangDone"]
    assert events[3] == {"unix_s": events[3]["unix_s"], "event": "StepDone", "step": 1, "loss": 1.0, "state": "running"}


def test_a_dead_rank_kills_its_gang_and_the_next_starts_from_the_newest_checkpoint(tmp_path):
    first = [started(), step(1), saved(tmp_path, 1), step(2), saved(tmp_path, 2), step(3), [(1, exited(-9, 9))]]
    group = FakeGroup(first, [started(step=2), step(3), step(4), done(4)])
    result = run(tmp_path, group)
    assert group.calls == ["start", "recall", "start", "close", "close"] and group.blamed == [[1]]
    assert resumes(group) == ["", "step-00000002"]
    assert [launch.config["attempt"] for launch in group.launches] == [1, 2]
    assert (result.state, result.restarts, result.step) == ("finished", 1, 4)


def test_a_checkpoint_that_was_never_announced_counts(tmp_path):
    group = FakeGroup([started(), step(1), lambda: save(tmp_path, 1), [(0, exited(-9, 9))]], [started(step=1), step(2), done(2)])
    run(tmp_path, group)
    assert resumes(group) == ["", "step-00000001"]


def test_a_new_run_resumes_from_the_newest_complete_checkpoint(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-00000002").mkdir()
    group = FakeGroup([started(step=1), step(2), done(2)])
    run(tmp_path, group)
    assert resumes(group) == ["step-00000001"]


def test_restarts_end_with_the_budget(tmp_path):
    group = FakeGroup(*[[started(), [(1, exited(3, 0, "out of memory"))]]] * 3)
    result = run(tmp_path, group, restarts=2)
    assert (result.state, result.exit_code, result.restarts) == ("failed", 1, 2)
    assert result.message == "rank 1 exited with code 3: out of memory; limits.restarts (2) is spent"
    assert group.calls == ["start", "recall"] * 3 + ["close", "close"]
    assert read_status(tmp_path).state == "failed"


def test_a_users_mistake_is_not_tried_again(tmp_path):
    group = FakeGroup([[(1, failed("data/x.txt: no such file", "user"))]])
    result = run(tmp_path, group)
    assert (result.exit_code, result.message) == (1, "rank 1: data/x.txt: no such file")
    assert group.calls == ["start", "kill", "close", "close"]


def test_a_message_that_comes_during_the_kill_is_gathered(tmp_path):
    words = [(0, failed("disk full", "user")), (0, exited(-9, 9)), (1, exited(-9, 9))]
    group = FakeGroup([started(), [(1, failed("Connection closed by peer"))], []], late_words=words)
    result = run(tmp_path, group)
    assert result.message == "rank 0: disk full (then rank 1: Connection closed by peer)"


def test_several_failures_of_one_batch_lead_to_one_kill(tmp_path):
    batch = [(1, failed("Connection reset by peer")), (0, exited(-9, 9)), (1, exited(1))]
    result = run(tmp_path, FakeGroup([started(), batch]), restarts=0)
    assert result.message == "rank 0 was killed by SIGKILL (then rank 1: Connection reset by peer); limits.restarts is 0"


def test_the_cause_is_heard_after_its_consequence(tmp_path):
    group = FakeGroup([started(), [(1, failed("Connection reset by peer"))], [(0, exited(-9, 9))]])
    result = run(tmp_path, group, restarts=0)
    assert result.message.startswith("rank 0 was killed by SIGKILL (then rank 1")


def test_messages_of_a_killed_attempt_do_not_reach_the_next(tmp_path):
    batch = [(1, exited(-9, 9)), *step(9), (0, failed("Connection reset by peer"))]
    group = FakeGroup([started(), step(1), batch], [started(), step(1), done(1)])
    assert run(tmp_path, group).state == "finished"


def test_a_rank_that_lags_is_named_by_the_step_timeout(tmp_path, clock):
    silence = [lambda: clock.forward(31.0)] * 2
    group = FakeGroup([started(), step(1), step(2, ranks=[0]), *silence])
    result = run(tmp_path, group, restarts=0)
    assert result.message.startswith("rank 1: no step after step 1 within 60 s")


def test_a_step_in_time_resets_the_step_timeout(tmp_path, clock):
    slow = [x for n in range(1, 5) for x in (lambda: clock.forward(50.0), step(n))]
    assert run(tmp_path, FakeGroup([started(), *slow, done(4)])).state == "finished"


def test_a_hanging_gang_is_restarted(tmp_path, clock):
    group = FakeGroup([started(), step(1), saved(tmp_path, 1), lambda: clock.forward(61.0)], [started(step=1), step(2), done(2)])
    result = run(tmp_path, group)
    assert (result.state, result.restarts, resumes(group)) == ("finished", 1, ["", "step-00000001"])


def test_a_controller_that_stood_still_itself_blames_no_rank(tmp_path, clock):
    group = FakeGroup([started(), step(1), lambda: clock.forward(61.0), step(2, ranks=[0]), step(2, ranks=[1]), done(2)])
    result = run(tmp_path, group)
    assert (result.state, result.restarts) == ("finished", 0)


@pytest.mark.parametrize(("measuring_s", "state"), [(89.0, "finished"), (91.0, "failed")])
def test_the_last_held_out_loss_may_take_longer_than_a_step(tmp_path, clock, measuring_s, state):
    group = FakeGroup([started(), step(1), saved(tmp_path, 1), lambda: clock.forward(measuring_s), *[[]] * loop_module.LOOKS, done(1)])
    result = run(tmp_path, group, steps=1, restarts=0)
    assert (result.state, "no end after the last step" in result.message) == (state, state == "failed")


def test_a_rank_that_never_starts_is_named(tmp_path, clock):
    group = FakeGroup([lambda: clock.forward(89.0), started(size=1), lambda: clock.forward(2.0)])
    result = run(tmp_path, group, restarts=0)
    assert result.message == "rank 1: not ready within 90 s; limits.restarts is 0"


def test_stop_drains_and_can_be_resumed(tmp_path):
    stop = Stop()
    group = FakeGroup([started(), step(1), stop.request], drained=[step(2), saved(tmp_path, 2), done(2, drained=True)])
    result = run(tmp_path, group, stop=stop)
    assert group.calls == ["start", "drain", "close", "close"]
    assert (result.state, result.exit_code, result.step) == ("drained", 0, 2)
    assert result.checkpoint.endswith("step-00000002")


def test_a_second_stop_kills(tmp_path):
    stop = Stop()
    group = FakeGroup([started(), step(1), stop.request], drained=[stop.request])
    result = run(tmp_path, group, stop=stop)
    assert group.calls == ["start", "drain", "kill", "close", "close"]
    assert (result.state, result.exit_code) == ("failed", 130)


def test_a_drain_that_takes_too_long_is_killed(tmp_path, clock):
    stop = Stop()
    group = FakeGroup([started(), step(1), stop.request], drained=[lambda: clock.forward(61.0)])
    result = run(tmp_path, group, stop=stop)
    assert result.message == "failed before the last steps were saved: ranks 0, 1: did not save within 60 s"


def test_a_stop_before_the_first_step_ends_at_once(tmp_path):
    stop = Stop()
    group = FakeGroup([stop.request])
    result = run(tmp_path, group, stop=stop)
    assert (result.state, result.exit_code, group.calls) == ("drained", 0, ["start", "kill", "close", "close"])


def test_two_stops_at_once_kill(tmp_path):
    stop = Stop()
    group = FakeGroup([started(), step(1), lambda: (stop.request(), stop.request())])
    assert run(tmp_path, group, stop=stop).exit_code == 130


def test_a_stop_before_the_start_starts_nothing(tmp_path):
    stop = Stop()
    stop.request()
    group = FakeGroup()
    assert run(tmp_path, group, stop=stop).exit_code == 0
    assert "start" not in group.calls


def test_a_cluster_that_is_too_small_fails_the_job(tmp_path):
    group = FakeGroup(refuse=PlacementError("needs 2 devices; the cluster has 1"))
    result = run(tmp_path, group)
    assert (result.exit_code, result.message) == (1, "needs 2 devices; the cluster has 1")


def test_ranks_that_could_not_be_spawned_are_tried_again_within_the_budget(tmp_path):
    group = FakeGroup(refuse=RayplaneError("a stage actor failed before it came up"))
    result = run(tmp_path, group, restarts=1)
    assert result.message == "a stage actor failed before it came up; limits.restarts (1) is spent"
    assert group.calls == ["start", "recall", "start", "recall", "close", "close"]


def test_the_group_is_closed_and_the_state_told_when_the_loop_itself_breaks(tmp_path):
    def broken():
        raise OSError("no more files")

    group = FakeGroup([started(), broken])
    with pytest.raises(OSError, match="no more files"):
        run(tmp_path, group)
    assert group.calls[-1] == "close"
    assert "no more files" in read_status(tmp_path).message


def test_a_broken_observer_does_not_leave_ranks_behind(tmp_path):
    class Broken(Watcher):
        def on_step(self, reports):
            raise BrokenPipeError

    group = FakeGroup([started(), step(1)])
    with pytest.raises(BrokenPipeError):
        run(tmp_path, group, observers=[Broken()])
    assert group.calls[-1] == "close"


def test_many_steps_leave_the_first_out_as_warm_up(tmp_path):
    slow_first = step(1)
    for _, message in slow_first:
        message["wall_s"] = 100.0
    group = FakeGroup([started(), slow_first, step(2), step(3), step(4), done(4)])
    assert run(tmp_path, group).tokens_per_s == 64.0


def test_a_stop_ends_a_wait_for_places(tmp_path):
    stop = Stop()
    group = FakeGroup(busy=stop.request)
    result = run(tmp_path, group, stop=stop)
    assert (result.state, result.exit_code) == ("drained", 0)
    assert group.calls == ["start", "kill", "close", "close"]


def test_a_lost_actor_is_named_as_the_cause(tmp_path):
    lost = [(rank, {"type": "lost", "reason": "its stage actor on gpu-4 is lost"}) for rank in (0, 1)]
    group = FakeGroup([started(), step(1), lost])
    result = run(tmp_path, group, restarts=0)
    assert result.message == "ranks 0, 1: its stage actor on gpu-4 is lost; limits.restarts is 0"


def test_holdout_loss_before_training_is_known_to_a_resumed_run(tmp_path):
    run(tmp_path, FakeGroup([started(holdout=5.5), step(1), saved(tmp_path, 1), done(1, drained=True)]))
    result = run(tmp_path, FakeGroup([started(step=1), step(2), done(2, holdout=2.5)]))
    assert (result.holdout_before, result.holdout_after) == (5.5, 2.5)


def test_a_run_without_a_new_step_knows_the_last_loss_and_rate(tmp_path):
    run(tmp_path, FakeGroup([started(), step(1), step(2), saved(tmp_path, 2), step(3), done(3)]), steps=3)
    group = FakeGroup([started(step=2), lambda: statuses.append(read_status(tmp_path)), done(2)])
    statuses = []
    again = run(tmp_path, group, steps=2)
    assert (again.step, again.losses, again.final_loss, again.tokens_per_s) == (2, {}, 0.5, 0.0)
    for status in (*statuses, read_status(tmp_path)):
        assert (status.step, status.loss, status.tokens_per_s) == (2, 0.5, 64.0)


@pytest.mark.parametrize(
    "line", ["", "{", '{"event": "StepDone", "step": 2, "loss": null}', '{"event": "Saved", "step": 2, "loss": 1}']
)
def test_a_journal_that_does_not_tell_the_last_loss_is_borne(tmp_path, line):
    save(tmp_path, 2)
    (tmp_path / "events.jsonl").write_text(f"{line}\n")
    assert run(tmp_path, FakeGroup([started(step=2), done(2)]), steps=2).final_loss is None


def test_every_start_has_its_own_lease(tmp_path):
    group = FakeGroup([started(), step(1), [(1, exited(-9, 9))]], [started(), step(1), done(1)])
    run(tmp_path, group)
    leases = [launch.lease for launch in group.launches]
    assert leases[0].path == leases[1].path == str(tmp_path.with_name(f".{tmp_path.name}.ranks"))
    assert leases[0].attempt != leases[1].attempt


def test_a_full_disk_costs_the_journal_not_the_job(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module, "write_status", full)
    assert run(tmp_path, FakeGroup([started(), step(1), done(1)])).state == "finished"
    assert caplog.text.count("No space left on device; the job goes on") == 1


def test_a_journal_that_cannot_be_opened_names_the_field(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(RayplaneError, match=r"train\.checkpoint\.dir: cannot write to .*events\.jsonl: Is a directory"):
        Controller(Task(tmp_path, 4, LimitsSection(), launch()), FakeGroup())


def test_a_node_that_is_gone_is_heard_of_while_its_neighbours_are_called_back(tmp_path):
    words = [(0, exited(-9, 9)), (1, {"type": "lost", "reason": "its node b is lost", "kind": "node"})]
    group = FakeGroup([started(), step(1), [(0, failed("Connection reset by peer"))], []], late_words=words)
    result = run(tmp_path, group, restarts=0)
    assert result.message == "rank 1: its node b is lost (then rank 0: Connection reset by peer); limits.restarts is 0"


def test_failures_of_many_ranks_do_not_rewrite_the_state_each(tmp_path, monkeypatch, clock):
    written = []
    monkeypatch.setattr(journal_module, "write_status", lambda folder, status: written.append(status.state))
    dead = [(rank, exited(-9, 9)) for rank in range(500)]
    task = Task(tmp_path, 4, LimitsSection(restarts=0), launch(500), {})
    result = Controller(task, FakeGroup([started(500), dead])).run(Stop())
    assert result.message.startswith("ranks 0, 1, 2, ") and len(written) < 12
