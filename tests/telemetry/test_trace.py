"""Traces on disk, on one time, as text and as a file for a viewer."""

import json
import re
from dataclasses import replace

import pytest

from rayplane.errors import RayplaneError
from rayplane.plan.step.timeline import play
from rayplane.spec import builders
from rayplane.spec.layout import Layout
from rayplane.spec.passes import add_communication, add_step, build
from rayplane.spec.report import RankTrace, Stretch
from rayplane.spec.schedule import COMPUTE, Action, Op, Span
from rayplane.telemetry import picture as pictures
from rayplane.telemetry.chrome import Lane, chrome
from rayplane.telemetry.picture import picture, scale
from rayplane.telemetry.trace import accuracy_s, read, spans, write

LAYOUT = Layout(pp=2, boundaries=(1, 1))
KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]


def unit(action):
    return {Op.FORWARD: 1.0, Op.BACKWARD: 2.0, Op.INPUT_GRAD: 1.0, Op.WEIGHT_GRAD: 1.0}.get(action.op, 0.0)


def rows(layout, microbatches):
    timeline = play(build(layout, microbatches), unit)
    return timeline, {str(stage): row for stage, row in enumerate(timeline.ranks)}


def rank_trace(rank, start_unix_s=100.0, host="a", step=3, layout=LAYOUT):
    """A forward that waits for half a second, works for one, half of it in a collective, and then sends."""
    stretches = (
        Stretch("data", "", 0.0, 0.25),
        Stretch("host", f"F{rank}.0", 0.25, 0.5),
        Stretch("recv_wait", f"F{rank}.0", 0.5, 1.0),
        Stretch("forward", f"F{rank}.0", 1.0, 1.25),
        Stretch("tp", f"F{rank}.0", 1.25, 1.75),
        Stretch("forward", f"F{rank}.0", 1.75, 2.0),
        Stretch("host", f"F{rank}.0", 2.0, 2.25),
        Stretch("host", f"SF{rank}.0", 2.25, 2.5),
        Stretch("optimizer", f"O{rank}.0", 2.5, 3.0),
        Stretch("host", "", 3.0, 3.5),
    )
    return RankTrace(rank, step, layout, host, start_unix_s, stretches)


def test_the_picture_of_the_docstring_is_what_the_code_draws():
    built = add_step(add_communication(builders.gpipe(2, 3)))
    drawn = play(built, unit).ranks
    for line in picture({str(stage): row for stage, row in enumerate(drawn)}, 3.0):
        assert line in pictures.__doc__


@pytest.mark.parametrize(("schedule", "vpp"), KINDS)
@pytest.mark.parametrize("width", [60, 120, 400])
def test_a_row_is_as_busy_as_its_stage_and_fits(schedule, vpp, width):
    timeline, of = rows(Layout(pp=4, schedule=schedule, vpp=vpp), 8)
    columns_per_s = scale(of, width)
    for line, spans_of in zip(picture(of, columns_per_s), timeline.ranks, strict=True):
        cells = line.partition("  ")[2]
        busy = sum(s.end_s - s.start_s for s in spans_of if s.action.op in COMPUTE)
        assert len(cells) <= width
        assert len(cells) - cells.count(".") + len(re.findall(r"\d\.\d", cells)) == pytest.approx(busy * columns_per_s, abs=2)


@pytest.mark.parametrize(("schedule", "vpp"), KINDS)
def test_a_wide_picture_names_every_action_in_order(schedule, vpp):
    layout = Layout(pp=4, schedule=schedule, vpp=vpp)
    timeline, of = rows(layout, 8)
    for line, spans_of in zip(picture(of, scale(of, 1000)), timeline.ranks, strict=True):
        assert re.findall(r"[FBIW]\d+\.\d+", line) == [str(s.action) for s in spans_of if s.action.op in COMPUTE]


def test_a_narrow_picture_tells_chunks_by_what_they_go_on_with():
    _, of = rows(Layout(pp=2, schedule="zbv", vpp=2), 3)
    assert picture(of, 3.0)[0].startswith("0  F0-F1-F2-F0=I0=W0=")


def test_a_stage_that_waits_starts_where_it_starts():
    action = Action(Op.FORWARD, 1)
    assert picture({"1": [Span(action, 2.0, 4.5)]}, 2.0) == ["1  ....F1.0-"]


def test_waiting_for_the_input_is_not_part_of_an_action_but_its_collectives_are():
    compute, send, step = spans(rank_trace(0))
    assert compute == Span(Action(Op.FORWARD, 0), 1.0, 2.0)
    assert send == Span(Action(Op.SEND_F, 0), 2.25, 2.5)
    assert step == Span(Action(Op.STEP, 0), 2.5, 3.0)


def test_what_was_written_is_read_oldest_step_first(tmp_path):
    for step in (12, 3):
        for rank in (1, 0):
            write(tmp_path, rank_trace(rank, step=step))
    steps, notes = read(tmp_path)
    assert steps == [[rank_trace(0, step=s), rank_trace(1, step=s)] for s in (3, 12)]
    assert not notes


def test_a_job_that_recorded_nothing_has_no_steps(tmp_path):
    assert read(tmp_path) == ([], [])


def test_ranks_of_a_host_keep_its_clock_and_hosts_meet_at_the_barrier(tmp_path):
    four = Layout(pp=4, boundaries=(1,) * 4)
    left = [(0, 100.0, "a"), (1, 100.002, "a"), (2, 977.003, "b"), (3, 977.0, "b")]
    for rank, start_unix_s, host in left:
        write(tmp_path, rank_trace(rank, start_unix_s, host, layout=four))
    ((*step,),), _ = read(tmp_path)
    assert [t.stretches[0].start_s for t in step] == pytest.approx([0.0, 0.002, 0.003, 0.0])
    assert [t.stretches[-1].end_s for t in step] == pytest.approx([3.5, 3.502, 3.503, 3.5])
    assert accuracy_s(step) == pytest.approx(0.003)
    assert accuracy_s(step[:2]) == 0.0, "one host's clock needs no setting"


def test_a_step_without_all_its_ranks_is_left_out_and_said(tmp_path):
    for step, ranks in ((3, (0, 1)), (4, (0,))):
        for rank in ranks:
            write(tmp_path, rank_trace(rank, step=step))
    steps, (note,) = read(tmp_path)
    assert [t.step for t in steps[0]] == [3, 3] and len(steps) == 1
    assert "step-00000004 is left out: nothing was recorded by rank 1" in note


def test_ranks_of_another_layout_are_not_of_the_step(tmp_path):
    for rank in range(4):
        write(tmp_path, rank_trace(rank, layout=Layout(dp=2, pp=2, boundaries=(1, 1))))
    for rank in range(2):
        write(tmp_path, rank_trace(rank))
    ((*step,),), _ = read(tmp_path)
    assert [(t.rank, t.layout) for t in step] == [(0, LAYOUT), (1, LAYOUT)]


def test_a_damaged_trace_is_named_with_its_remedy(tmp_path):
    write(tmp_path, rank_trace(0))
    path = tmp_path / "trace" / "step-00000003" / "rank-00000.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RayplaneError, match=r"rank-00000\.json is not a rank's trace .*remove its folder"):
        read(tmp_path)


@pytest.mark.parametrize(("schedule", "vpp"), KINDS)
def test_every_message_is_an_arrow_from_its_sender_to_its_user(schedule, vpp):
    layout = Layout(pp=4, schedule=schedule, vpp=vpp)
    timeline, _ = rows(layout, 6)
    lanes = [Lane(("planned",), f"planned, stage {s}", f"rank {s}", row) for s, row in enumerate(timeline.ranks)]
    events = json.loads(json.dumps(chrome(lanes)))["traceEvents"]
    sends = sorted(str(s.action) for row in timeline.ranks for s in row if s.action.op in (Op.SEND_F, Op.SEND_B))
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    slices = [e for e in events if e["ph"] == "X"]
    assert sorted(e["name"] for e in starts.values()) == sends
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] < end["ts"] and start["pid"] != end["pid"]
        (source,) = [s for s in slices if s["pid"] == start["pid"] and s["ts"] <= start["ts"] < s["ts"] + s["dur"]]
        (target,) = [s for s in slices if s["pid"] == end["pid"] and s["ts"] == end["ts"]]
        assert source["args"]["microbatch"] == target["args"]["microbatch"]
        assert abs(source["args"]["chunk"] - target["args"]["chunk"]) == 1


def test_slices_of_a_thread_nest():
    t = rank_trace(0)
    events = chrome([Lane(("measured",), "measured, stage 0", "rank 0", spans(t), t.stretches, offset_s=10.0)])["traceEvents"]
    slices = [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["name"]) for e in events if e["ph"] == "X"]
    assert min(s[0] for s in slices) == 10.0
    assert {name for *_, name in slices} == {"F0.0", "SF0.0", "O0.0", "data", "recv_wait", "tp", "optimizer"}
    for a in slices:
        for b in slices:
            assert a[1] <= b[0] or b[1] <= a[0] or (a[0] <= b[0] and b[1] <= a[1]) or (b[0] <= a[0] and a[1] <= b[1])


def test_tensor_parallel_ranks_send_to_their_own_column_only():
    lanes = []
    for stage in (0, 1):
        for column in (0, 1):
            t = replace(rank_trace(stage), rank=2 * stage + column)
            lanes.append(Lane(("measured", column), f"stage {stage}", f"rank {t.rank}", spans(t)))
    events = chrome(lanes)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    arrows: dict[int, list[str]] = {}
    for e in events:
        if e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append(names[e["pid"], e["tid"]])
    assert sorted(arrows.values()) == [["rank 0", "rank 2"], ["rank 1", "rank 3"]]
