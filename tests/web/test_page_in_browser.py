"""The page in a real browser: no errors, no requests, no sideways scrolling, and a timeline that zooms."""

import pytest
from explanations import explanation

from rayplane.web.explain_page import render

SIGHT = "(d => [Number(d.from), Number(d.to), d.each])(document.querySelector('.gantt').dataset)"
PLACE = "(b => [b.left, b.top, b.width])(document.querySelector('.gantt .view').getBoundingClientRect())"


@pytest.fixture
def shown(browser, tmp_path):
    """Opens the page of an explanation."""

    def open_(told, script=True, **screen):
        browser.problems.clear()
        path = tmp_path / "page.html"
        page = render(told)
        path.write_text(page if script else page[: page.rindex("<script>")], "utf-8")
        browser.open(path, **screen)
        return browser

    return open_


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_loads_without_an_error_or_a_request_and_never_scrolls_sideways(shown, width, dark):
    page = shown(explanation(), width=width, dark=dark)
    assert page.problems == []
    assert page.value("document.documentElement.scrollWidth") <= width
    assert "made-up" in page.value("document.body.innerText")
    paper = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


def test_the_timeline_zooms_by_keys_buttons_and_wheel_and_names_what_is_under_the_pointer(shown):
    page = shown(explanation())
    page.value(
        "document.querySelector('#timeline').scrollIntoView({behavior: 'instant'}); document.querySelector('.gantt .view').focus()"
    )
    bars = page.value("document.querySelectorAll('.gantt .bars rect').length")
    page.press("+")
    assert page.value(SIGHT)[:2] == [250_000, 750_000]
    assert 0 < page.value("document.querySelectorAll('.gantt .bars rect').length") < bars
    page.press("ArrowRight")
    assert page.value(SIGHT)[:2] == [375_000, 875_000]
    page.value("document.querySelector('.gantt [data-do=out]').click()")
    page.settle()
    assert page.value(SIGHT)[:2] == [0, 1_000_000]
    left, top, width = page.value(PLACE)
    page.mouse("mouseWheel", left + width / 2, top + 10, deltaX=0, deltaY=-400)
    start, end, _ = page.value(SIGHT)
    assert end - start == pytest.approx(1e6 / 2.71828, rel=0.01) and (start + end) / 2 == pytest.approx(500_000, abs=1000)
    page.press("0")
    page.mouse("mouseMoved", left + 2, top + 5)
    assert page.value("document.querySelector('.told').textContent").startswith("stage 0: forward, chunk 0, microbatch 0: 10 ms from 0")
    assert page.problems == []


def test_numbers_stand_only_in_bars_that_have_room(shown):
    page = shown(explanation(), width=400)
    few = page.value("document.querySelectorAll('.gantt .marks text').length")
    page = shown(explanation(), width=1280)
    many = page.value("document.querySelectorAll('.gantt .marks text').length")
    assert 0 < few < many


def test_a_long_pipe_shows_parts_first_and_every_bar_when_near(shown):
    page = shown(explanation(stages=64, microbatches=512, schedule="zb-h1"))
    assert page.value(SIGHT) == [0, 1_000_000, "false"]
    page.value("document.querySelector('.gantt .view').focus()")
    for _ in range(6):
        page.press("+")
    start, end, each = page.value(SIGHT)
    assert each == "true" and end - start == pytest.approx(1e6 / 64)
    told = page.value("[...document.querySelectorAll('.gantt .bars title')].map(t => t.textContent)")
    assert any(t.startswith("stage 63: ") for t in told) and len(told) < 6000
    page.press("0")
    assert page.value("document.querySelectorAll('.gantt .bars path').length") > 64
    assert page.problems == []


def test_without_its_script_the_page_still_shows_everything(shown):
    page = shown(explanation(), script=False)
    assert page.value("'from' in document.querySelector('.gantt').dataset") is False
    assert page.value("document.querySelectorAll('.gantt .bars title').length") > 100
    assert page.value("document.querySelectorAll('.gantt .marks text').length") > 10
