"""Pictures: what they draw adds up to what they were given."""

import json
import re
from xml.etree import ElementTree

import pytest
from explanations import timeline
from parsed import pictures, shapes, share

from rayplane.plan.step.timeline import Timeline
from rayplane.spec.schedule import Action, Op, Span
from rayplane.web.bars import HEIGHT, Column, Part, columns, strip
from rayplane.web.gantt import EXACT, gantt
from rayplane.web.lines import Axes, Mark, Series, lines, lowest
from rayplane.web.markup import Markup, join, tag
from rayplane.web.palette import COLOURS, colours
from rayplane.web.spans import TICKS, drawn, packed, parts
from rayplane.web.svg import every, ticks
from rayplane.web.table import table
from rayplane.web.units import against, counted, percent, round_seconds, size
from rayplane.web.waterfall import waterfall

TERMS = (("compute", 1.5), ("tp", 0.3), ("dp", 0.0), ("bubble", 0.2))


def one(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def test_text_is_escaped_unless_it_is_markup():
    assert tag("p", "1 < 2", class_="note") == '<p class="note">1 &lt; 2</p>'
    assert tag("p", tag("b", "x"), " & y") == "<p><b>x</b> &amp; y</p>"
    assert (
        tag("p", title='"quoted" <b>', hidden=True, id=None, lang=False)
        == '<p title="&quot;quoted&quot; &lt;b&gt;" hidden="hidden"></p>'
    )
    assert join("a<", None, [Markup("<i></i>"), 7]) == "a&lt;<i></i>7"


def test_a_waterfalls_bars_follow_one_another_and_end_at_the_sum():
    picture = one(waterfall("A step", TERMS, 2.0))
    *terms, total = [(share(r["x"]), share(r["width"])) for r in shapes(picture, "rect")]
    assert [round(w, 4) for _, w in terms] == [0.75, 0.15, 0.1]
    assert [round(x, 4) for x, _ in terms] == [0, 0.75, 0.9]
    assert total == (0, 1)
    assert next(t.text for t in picture.iter("title")) == "compute: 1.50 s  75%"


def test_a_strips_parts_sum_to_its_share_of_the_scale():
    parts_ = [Part(name, value, "") for name, value in TERMS]
    picture = one(strip("A step", parts_, 4.0, colours(n for n, _ in TERMS), mark=3.0))
    rects = shapes(picture, "rect")
    assert sum(share(r["width"]) for r in rects) == pytest.approx(0.5)
    assert [share(r["x"]) for r in rects] == pytest.approx([0, 0.375, 0.45, 0.45])
    assert share(shapes(picture, "line", "limit")[0]["x1"]) == 0.75


def test_a_columns_parts_reach_as_high_as_their_sum_and_capacities_differ_by_column():
    stacks = [Column(f"stage {i}", str(i), (("weights", 10), ("fixed", 20 * i)), 80 if i < 2 else 40) for i in range(3)]
    picture = one(columns("Memory", "stage", stacks))
    pixels = sum(float(r["height"]) for r in shapes(picture, "rect"))
    limits = shapes(picture, "line", "limit")
    per_byte = (HEIGHT - float(limits[0]["y1"])) / 80
    assert pixels == pytest.approx((10 + 30 + 50) * per_byte, rel=1e-3)
    assert [(share(line["x1"]), share(line["x2"])) for line in limits] == [(0, 0.66667), (0.66667, 1)]
    assert HEIGHT - float(limits[1]["y1"]) == pytest.approx(40 * per_byte, rel=1e-3)


def test_a_line_marks_its_turning_point_and_crosses_what_is_missing():
    main = Series("whole step", (None, 3.0, 2.0, None, 2.5))
    axes = Axes("tp", ("1", "2", "4", "8", "16"), ("too big", "", "", "", ""), lambda v: f"{v:.1f} s", lambda v: f"{v:g} s")
    picture = one(lines("A sweep", axes, main, (Series("tp", (None, 0.1, 0.2, None, 0.9)),), Mark(2, "best of all")))
    assert lowest(main) == 2
    assert share(shapes(picture, "circle", "ring")[0]["cx"]) == 0.5
    texts = [t.text for t in picture.iter("text")]
    assert "best of all" in texts and "1 s" in texts and texts.count("\N{MULTIPLICATION SIGN}") == 2
    assert len(shapes(picture, "circle")) == 3 + 3 + 1
    assert len(shapes(picture, "line", "gap")) == 2, "across the missing 8 both lines are dashed"
    titles = [t.text for t in picture.iter("title")]
    assert "tp 1: too big" in titles and "tp 8: no such layout" in titles and "tp 4: whole step 2.0 s" in titles


def test_a_line_without_any_point_has_no_turning_point():
    axes = Axes("tp", ("1", "2"), ("no", "no"), str, str)
    main = Series("s", (None, None))
    assert lowest(main) is None
    assert not shapes(one(lines("A sweep", axes, main)), "circle")


def test_places_without_an_order_are_not_joined():
    axes = Axes("schedule", ("1f1b", "zbv"), ("", ""), str, str, joined=False)
    picture = one(lines("A sweep", axes, Series("s", (1.0, 2.0))))
    assert len(shapes(picture, "circle")) == 2
    assert not [e for g in picture.iter("g") if "series" in g.attrib.get("class", "") for e in g.iter("line")]


def test_the_lowest_of_equals_is_the_first():
    assert lowest(Series("s", (2.0, 1.0, 1.0))) == 1


def test_every_bar_of_a_short_timeline_is_drawn_with_its_words():
    step = timeline(2, 3)
    figure = gantt(step, "A step")
    spans = [s for rank in step.ranks for s in rank if s.end_s > s.start_s]
    bars = [r for r in shapes(pictures(figure)[0], "rect") if r["class"] != "ground"]
    assert len(bars) == len(spans) == figure.count("<title>stage ")
    assert sum(int(r["width"]) for r in bars) == pytest.approx(sum(s.end_s - s.start_s for s in spans) / step.end_s * TICKS, rel=1e-4)
    assert "stage 1: forward, chunk 1, microbatch 2: 10.2 ms from " in figure


def unpack(text: str) -> list[list[tuple[str, int, int, int, int]]]:
    """What the page's script does: (op, chunk, microbatch, start, end) by rank."""
    out = []
    for rank in json.loads(text)["ranks"]:
        spans, due, now, given = [], {}, 0, None
        for number in rank["bars"]:
            if number < 0:
                given = -1 - number
                continue
            op, chunk, gap, length = rank["kinds"][number]
            microbatch = due.get((op, chunk), 0) if given is None else given
            spans.append((op, chunk, microbatch, now + gap, now + gap + length))
            now, given, due[op, chunk] = now + gap + length, None, microbatch + 1
        out.append(spans)
    return out


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv"])
def test_packed_bars_unpack_to_the_timelines_own(schedule):
    step = timeline(4, 9, schedule)
    expected = [[(d.op.value, d.chunk, d.microbatch, d.start, d.end) for d in spans] for spans in drawn(step)]
    assert unpack(packed(drawn(step), step.end_s)) == expected


def test_microbatches_out_of_order_are_packed_as_they_came():
    order = (4, 0, 1, 7)
    step = Timeline((tuple(Span(Action(Op.FORWARD, 0, m), float(i), i + 1.0) for i, m in enumerate(order)),))
    assert [bar[2] for bar in unpack(packed(drawn(step), step.end_s))[0]] == list(order)


def test_parts_hold_all_of_the_time_of_every_op():
    step = timeline(4, 30, "zb-h1")
    for spans, rank in zip(step.ranks, drawn(step), strict=True):
        shares = parts([rank], 40)
        assert sum(map(sum, shares.values())) / 40 == pytest.approx(sum(s.end_s - s.start_s for s in spans) / step.end_s, rel=1e-4)
        assert max(sum(column) for column in zip(*shares.values(), strict=True)) <= 1 + 1e-6


def test_a_long_timeline_is_drawn_in_parts_and_kept_whole_for_the_script():
    step = timeline(16, 128)
    figure = gantt(step, "A step")
    bars = sum(map(len, drawn(step)))
    assert bars > EXACT and "drawn in parts" in figure
    picture = pictures(figure)[0]
    assert len(shapes(picture, "rect", "ground")) == 16 and len(list(picture.iter("path"))) <= 16 * 4
    data = re.search(r'<script type="application/json">(.*?)</script>', figure)
    assert data and sum(map(len, unpack(data[1]))) == bars


def test_ranks_beyond_the_rows_share_them_and_then_nothing_zooms():
    step = timeline(300, 2)
    figure = gantt(step, "A step")
    picture = pictures(figure)[0]
    assert len(shapes(picture, "rect", "ground")) == 100 and "A row is of 3 stages" in figure
    assert "<script" not in figure and "<button" not in figure
    busy = sum(d.end - d.start for rank in drawn(step)[297:] for d in rank) / TICKS / 3
    assert f"<title>stages 297 to 299: busy {percent(busy)} of the step" in figure


def test_an_empty_timeline_is_an_empty_picture():
    assert not [r for r in shapes(pictures(gantt(Timeline(((), ())), "Nothing"))[0], "rect") if r["class"] != "ground"]


def test_terms_drawn_together_have_colours_of_their_own():
    assert len(set(colours(("compute", "tp", "dp", "p2p", "optimizer", "bubble", "host")).values())) == len(COLOURS) == 7
    assert colours(("compute", "host"))["host"] != "blue"


def test_a_table_names_its_rows_and_columns_and_refuses_a_short_row():
    made = table("Caption", ("layout", "step"), [("dp2", "1 s")])
    assert '<th scope="row" class="words">dp2</th><td class="number" data-of="step">1 s</td>' in made
    assert "<caption>Caption</caption>" in made
    with pytest.raises(ValueError, match="zip"):
        table("Caption", ("layout", "step"), [("dp2",)])


def test_numbers_are_written_for_a_reader():
    assert [size(n) for n in (0, 999, 12_000_000, 1.5e12, 134_217_728)] == ["0 B", "999 B", "12.0 MB", "1.5 TB", "134 MB"]
    assert [percent(s) for s in (0, 1e-17, 0.0002, 0.0123, 0.44, 0.0996)] == ["0%", "0%", "<0.1%", "1.2%", "44%", "10%"]
    assert [against(v, 1.0) for v in (1.05, 0.9, 1.0)] == ["+5.0%", "\N{MINUS SIGN}10.0%", "the same"]
    assert [ticks(t) for t in (1.0, 7.3, 0)] == [pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0)), (0, 2, 4, 6), (0.0,)]
    assert [every(n, 16) for n in (1, 16, 17, 64)] == [1, 1, 2, 4]
    assert [round_seconds(s) for s in (20.0, 0.5, 2e-5)] == ["20 s", "500 ms", "20 µs"]
    assert [counted(n, "microbatch", "microbatches") for n in (1, 1024)] == ["1 microbatch", "1,024 microbatches"]
