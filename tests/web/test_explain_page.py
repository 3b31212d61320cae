"""The page of an explanation: all of it is there, it is escaped, it asks for nothing, and its size is bounded."""

import re
from dataclasses import replace

import pytest
from explanations import explanation
from parsed import Parsed, pictures, shapes

from rayplane.plan.choice.report import report, seconds
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.why.explain import explain
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload
from rayplane.web.explain_page import render
from rayplane.web.units import size

NASTY = "<script>alert('x')</script> & \"more\""


@pytest.fixture(scope="module")
def told():
    return explanation()


@pytest.fixture(scope="module")
def page(told):
    return render(told)


@pytest.fixture(scope="module")
def text(page):
    return Parsed(page).text


def test_elements_nest_and_ids_are_unique_and_every_link_has_its_target(page):
    parsed = Parsed(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    targets = [attributes["href"][1:] for name, attributes in parsed.elements if name == "a"]
    assert len(targets) > 8
    assert set(targets) <= set(parsed.ids)


def test_the_answer_comes_before_anything_else(told, text):
    head = text[: text.index("The winner's step")]
    plan = told.plan
    for said in (str(plan.layout), "2.66 s", "1,576,806", "44%", "fits", "61.0 GB", "64", report(plan).why):
        assert said in head, said


def test_every_figure_of_the_explanation_is_on_the_page(told, text):
    said = [told.name, told.model, told.cluster, told.figures]
    for fall in told.waterfalls:
        said += [
            str(fall.layout),
            fall.lost_because,
            seconds(fall.step_s),
            *(seconds(s) for _, s in fall.terms),
            gigabytes(fall.memory_bytes),
        ]
    for axis in told.axes:
        said += [
            f"{axis.name} of {axis.size}",
            axis.link,
            axis.arithmetic,
            seconds(axis.comm_s),
            seconds(axis.exposed_s),
            f"{axis.bound}-bound",
        ]
        said += [part for t in axis.traffic for part in (t.what, t.arithmetic, size(t.message_bytes), size(t.sent_bytes))]
    for sweep in told.sweeps:
        said += [sweep.question, sweep.finding, *(p.label for p in sweep.points), *(p.note for p in sweep.points)]
        said += [seconds(p.step_s) for p in sweep.points if p.step_s is not None]
    for stage in told.stages:
        said += [size(stage.memory_bytes), *(size(value) for _, value in stage.memory), stage.kind]
    for change in told.what_ifs:
        said += [change.change, change.meaning, change.finding]
        said += [seconds(s) for s in (change.same_layout_s, change.best_s) if s is not None]
    said += [part for a in told.answers for part in (a.question, a.text)]
    said += [part for r in told.plan.rejected for part in (r.reason,)]
    assert [s for s in said if " ".join(s.split()) not in text] == []


def test_a_layout_that_cannot_run_under_a_change_is_said_to(text):
    assert "cannot run" in text


def test_refusals_of_one_reason_are_told_once(told, text):
    reasons = [r.reason for r in told.plan.rejected]
    assert len(reasons) == 2 and len(set(reasons)) == 1
    assert text.count(reasons[0]) == 1
    assert "1 more were refused" in text


def test_what_a_user_wrote_is_escaped(told):
    point = replace(told.sweeps[0].points[0], label=NASTY, note=NASTY)
    nasty = replace(
        told,
        name=NASTY,
        model=NASTY,
        cluster=NASTY,
        figures=NASTY,
        axes=(replace(told.axes[0], name=NASTY, link=NASTY, arithmetic=NASTY),),
        sweeps=(
            replace(
                told.sweeps[0], name=NASTY, question=NASTY, finding=NASTY, x_name=NASTY, points=(point, *told.sweeps[0].points[1:])
            ),
        ),
        stages=(replace(told.stages[0], kind=NASTY, memory=((NASTY, 5),)),),
        waterfalls=(replace(told.waterfalls[0], lost_because=NASTY, verdict=NASTY, terms=((NASTY, 1.0),)),),
        what_ifs=(replace(told.what_ifs[0], change=NASTY, meaning=NASTY, finding=NASTY),),
        answers=(replace(told.answers[0], question=NASTY, text=NASTY),),
    )
    page = render(nasty)
    assert "<script>alert" not in page
    assert NASTY in Parsed(page).text
    assert page.count("<script") == render(told).count("<script")
    assert len(pictures(page)) > 4


def test_nothing_is_asked_of_anywhere_else(page):
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert not re.search(r"@import|url\(", page)
    for name, attributes in Parsed(page).elements:
        assert "src" not in attributes, name
        assert attributes.get("href", "#").startswith(("#", "data:")), attributes
    policies = [a["content"] for _, a in Parsed(page).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1 and policies[0].startswith("default-src 'none';")


def test_every_picture_is_well_formed_and_says_what_it_shows(page):
    found = pictures(page)
    assert len(found) == page.count('<svg class="plot')
    assert [p.attrib["aria-label"] for p in found if p.attrib["role"] != "img" or len(p.attrib["aria-label"]) < 10] == []


def test_it_is_the_same_page_every_time(told, page):
    assert render(told) == page


def test_a_long_pipe_stays_under_two_megabytes():
    page = render(explanation(stages=64, microbatches=512, schedule="zb-h1"))
    assert len(page.encode()) < 2_000_000
    Parsed(page)


def test_a_plan_of_one_device_with_nothing_to_compare_still_has_a_page(told):
    bare = replace(explanation(1, 1), waterfalls=(), axes=(), sweeps=(), stages=(), what_ifs=(), answers=())
    parsed = Parsed(render(bare))
    assert "nothing is sent" in parsed.text
    assert not {"sweeps", "memory", "what-ifs", "answers"} & set(parsed.ids)


def test_runners_up_beyond_the_first_are_folded_away(told):
    many = replace(told, waterfalls=(told.waterfalls[0], *told.waterfalls[1:2] * 9))
    assert "5 more runners-up" in Parsed(render(many)).text


def test_a_slow_runner_up_that_is_folded_away_does_not_shrink_the_bars_in_sight(told):
    slow = replace(told.waterfalls[1], step_s=900.0, terms=(("compute", 900.0),))
    page = render(replace(told, waterfalls=(*told.waterfalls, *told.waterfalls[1:], slow)))
    widest = max(float(r["width"][:-1]) for r in shapes(pictures(page)[1], "rect"))
    assert widest == pytest.approx(100 * 1.83 / told.waterfalls[2].step_s, rel=1e-3)


def test_a_real_explanation_has_a_page():
    model = ModelSpec(layers=8, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=344, vocab=256, name="tiny")
    cluster = homogeneous({"here": 4}, "cpu", 4 * 10**9, {})
    real = explain(model, Workload(16, 256, "fp32"), cluster, None, ("devices=+4",), "real")
    page = render(real)
    text = Parsed(page).text
    said = [str(real.plan.layout), *(s.finding for s in real.sweeps), *(a.text for a in real.answers), real.what_ifs[0].finding]
    assert len(real.sweeps) > 3 and len(real.answers) == 13
    assert [s for s in said if " ".join(s.split()) not in text] == []
    assert len(pictures(page)) == page.count('<svg class="plot')


def test_a_timeline_of_fewer_microbatches_says_so(told):
    assert "the first 3 are drawn" in Parsed(render(replace(told, shown_microbatches=3))).text
    assert "are drawn" not in Parsed(render(replace(told, shown_microbatches=16))).text
