"""Recording a step: nothing of it is lost, nothing of training changes, and what cannot be written ends nothing."""

import pytest

from rayplane.comm.clock import PhaseClock
from rayplane.spec.job import TraceSection
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.spec.report import Stretch
from rayplane.spec.schedule import Op
from rayplane.telemetry.trace import read, spans
from rayplane.train.threads import run_ranks
from rayplane.train.trace import Tracer

from .training import cut, make_rank, section, tiny

STEPS = 3
ONLY_THE_SECOND = TraceSection(first=2, steps=1)


def train(folder, layout, trace):
    """(reports by rank, losses) of a few steps."""
    job = section(folder)

    def body(mesh):
        rank, tracer, reports = make_rank(tiny(), job, mesh), Tracer(trace, mesh, folder), []
        mesh.clock.start()
        for step in range(1, STEPS + 1):
            tracer.before(step)
            reports.append(rank.step(drain=False)[0])
            tracer.after(step)
        return reports

    return run_ranks(cut(tiny(), layout), body)


def test_a_clock_gives_what_it_was_in_and_for_what():
    now = iter(range(100))
    clock = PhaseClock(stamp=lambda: float(next(now)))
    with clock.phase("data"):
        pass
    clock.record()
    clock.about("F0.0")
    with clock.phase("forward"), clock.phase("tp"):
        pass
    clock.about("")
    assert sum(clock.take().values()) == 10.0
    assert clock.recorded() == (
        Stretch("host", "", 0.0, 1.0),
        Stretch("host", "F0.0", 1.0, 2.0),
        Stretch("forward", "F0.0", 2.0, 3.0),
        Stretch("tp", "F0.0", 3.0, 4.0),
        Stretch("forward", "F0.0", 4.0, 5.0),
        Stretch("host", "F0.0", 5.0, 6.0),
        Stretch("host", "", 6.0, 7.0),
    )


def test_a_clock_that_records_nothing_stamps_no_subjects():
    stamps = []
    clock = PhaseClock(stamp=lambda: stamps.append(0.0) or 0.0)
    before = len(stamps)
    clock.about("F0.0")
    assert len(stamps) == before


@pytest.mark.parametrize(
    "layout",
    [Layout(dp=2, pp=2, micro_batch=2), Layout(pp=2, tp=2, sp=True, schedule="zbv", vpp=2, micro_batch=3)],
    ids=str,
)
def test_the_recorded_step_is_whole(tmp_path, layout):
    reports = train(tmp_path, layout, ONLY_THE_SECOND)
    ((*step,),), notes = read(tmp_path)
    assert not notes and [t.step for t in step] == [2] * 4
    actions = build(step[0].layout, step[0].layout.num_microbatches(8))
    for t in step:
        assert all(a.end_s == pytest.approx(b.start_s, abs=1e-9) for a, b in zip(t.stretches, t.stretches[1:], strict=False))
        assert tuple(s.action for s in spans(t)) == actions.ranks[step[0].layout.coord(t.rank).pp]
        report, seconds = reports[t.rank][1], {}
        for s in t.stretches:
            seconds[s.phase] = seconds.get(s.phase, 0.0) + s.end_s - s.start_s
        for phase in ("data", "forward", "backward", "optimizer", "tp", "dp"):
            assert seconds.get(phase, 0.0) == pytest.approx(report.phases.get(phase, 0.0), rel=1e-6), phase
        assert seconds["recv_wait"] <= report.phases["recv_wait"], "the step also waited at the trace's barrier"


def test_no_message_is_used_before_it_is_made(tmp_path):
    train(tmp_path, Layout(pp=3, schedule="zb-h1", micro_batch=1), ONLY_THE_SECOND)
    ((*step,),), _ = read(tmp_path)
    made = {s.action: s for t in step for s in spans(t)}
    for action, span in made.items():
        if action.op in (Op.FORWARD, Op.INPUT_GRAD):
            source = made.get(type(action)(action.op, action.chunk + (-1 if action.op is Op.FORWARD else 1), action.microbatch))
            assert source is None or source.end_s <= span.start_s


def test_recording_changes_no_loss(tmp_path):
    layout = Layout(pp=2, micro_batch=2)
    losses = [[r.loss for r in train(tmp_path, layout, trace)[0]] for trace in (None, TraceSection(first=1, steps=STEPS))]
    assert losses[0] == losses[1]
    assert len(read(tmp_path)[0]) == STEPS


def test_a_trace_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    (tmp_path / "trace").write_text("not a folder")
    reports = train(tmp_path, Layout(pp=2, micro_batch=2), ONLY_THE_SECOND)
    assert [len(of) for of in reports] == [STEPS, STEPS]
    assert "the trace of step 2 could not be written" in caplog.text
