"""Which lines a sweep is drawn as."""

from dataclasses import replace

from explanations import sweeps

from rayplane.plan.why.explanation import Point, Sweep
from rayplane.spec.layout import Layout
from rayplane.web.lines import Mark
from rayplane.web.sections.sweep_lines import drawing

WHOLE, CUT = Layout(tp=2), Layout(cp=2)


def point(x: float, label: str, layout: Layout | None = WHOLE, step_s: float | None = 1.0, bubble: float | None = None) -> Point:
    return Point(x, label, layout, step_s, (), bubble, None, "" if step_s else "does not fit")


def test_a_sweep_of_degrees_is_the_step_with_its_turning_point_beside_the_terms_that_change_most():
    drawn = drawing(sweeps(WHOLE)[0])
    assert drawn.main.name == "whole step" and drawn.main.values == (None, 4.21, 2.97, 2.66, 3.913)
    assert drawn.mark == Mark(3, "best 2.66 s")
    assert [s.name for s in drawn.others] == ["tp", "compute", "bubble"]
    assert drawn.others[0].values[0] is None and drawn.axes.joined


def test_a_term_that_hardly_changes_is_not_drawn():
    points = tuple(replace(point(x, str(x)), terms=(("compute", 1.0), ("tp", 1e-4 * x))) for x in (1, 2, 4))
    assert drawing(Sweep("tp", "?", "tp", points, "")).others == ()


def test_places_in_no_order_are_not_joined():
    points = (point(1, "gpipe"), point(1, "1f1b"), point(2, "zbv"))
    assert not drawing(Sweep("vpp", "?", "chunks", points, "")).axes.joined


def test_a_sweep_of_microbatches_is_the_idle_share():
    points = tuple(point(m, f"m {m}", step_s=float(m), bubble=1 / (m + 1)) for m in (1, 2, 4))
    drawn = drawing(Sweep("microbatches", "?", "microbatches", points, ""))
    assert drawn.main.values == (0.5, 1 / 3, 0.2)
    assert drawn.mark is None and drawn.axes.unit(0.2) == "20%"


def test_contexts_are_two_lines_marked_from_where_cp_pays():
    points = (
        point(1, "1k tp2", WHOLE, 1.0),
        point(1, "1k cp2", CUT, 1.5),
        point(2, "2k tp2", WHOLE, 3.0),
        point(2, "2k cp2", CUT, 2.0),
        point(4, "4k -", None, None),
        point(4, "4k cp2", CUT, 5.0),
    )
    drawn = drawing(Sweep("cp-or-tp", "?", "context", points, ""))
    assert (drawn.main.values, drawn.others[0].values) == ((1.5, 2.0, 5.0), (1.0, 3.0, None))
    assert drawn.axes.labels == ("1k", "2k", "4k")
    assert drawn.mark == Mark(1, "cp pays from here")


def test_where_cp_cannot_run_its_note_is_kept_and_nothing_is_marked():
    points = (point(1, "1k tp2", WHOLE, 1.0), point(1, "1k -", None, None))
    drawn = drawing(Sweep("cp-or-tp", "?", "context", points, ""))
    assert drawn.main.values == (None,) and drawn.axes.notes == ("does not fit",) and drawn.mark is None
