"""A stop string ends a text wherever tokens cut it, and no part of it is seen before."""

from hypothesis import given
from hypothesis import strategies as st

from rayplane.serve.stops import StopStrings

AB = st.text("ab", max_size=20)


def through(stops, parts, include=False):
    """(what came out after each part, whether it stopped)"""
    stream, out = StopStrings(stops, include), []
    for part in parts:
        out.append(stream.push(part))
        if stream.found is not None:
            return out, True
    return [*out, stream.finish()], False


def naive(stops, text, include):
    """The text up to the stop string that is complete first, of several the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - max(map(len, found))], True
    return text, False


@given(stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), parts=st.lists(AB, max_size=8), include=st.booleans())
def test_text_is_cut_as_if_it_had_come_at_once(stops, parts, include):
    out, stopped = through(stops, parts, include)
    assert ("".join(out), stopped) == naive(stops, "".join(parts), include)


@given(stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), text=AB)
def test_only_what_may_become_a_stop_string_is_held_back(stops, text):
    stream, out = StopStrings(stops), ""
    for i, character in enumerate(text):
        out += stream.push(character)
        if stream.found is not None:
            break
        held = text[len(out) : i + 1]
        assert held == max(
            (text[: i + 1][-n:] for stop in stops for n in range(1, len(stop)) if text[: i + 1].endswith(stop[:n])), key=len, default=""
        )


def test_the_example_of_the_module():
    parts = ["Hi", "\n", "\n", "We", "\n\nUs", "er: x"]
    assert through(["\n\nUser"], parts) == (["Hi", "", "", "\n\nWe", "", ""], True)


def test_the_longest_of_those_complete_at_once_is_the_one_found():
    stream = StopStrings(["b", "ab", "c"])
    assert (stream.push("xabc"), stream.found) == ("x", "ab")
