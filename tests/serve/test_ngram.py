"""Drafts are what followed the last few tokens when they stood before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.serve.ngram import PromptLookup


def naive(tokens, num_drafts, longest, shortest, window):
    """By looking at every place of the text, the latest first."""
    end = len(tokens)
    for n in range(min(longest, end), shortest - 1, -1):
        for place in range(end - 1, max(n, end - window) - 1, -1):
            if tokens[place - n : place] == tokens[end - n :]:
                text = list(tokens)
                for _ in range(num_drafts):
                    text.append(text[len(text) - (end - place)])
                return text[end:]
    return []


@given(
    parts=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12),
    num_drafts=st.integers(0, 5),
    shortest=st.integers(1, 2),
    more=st.integers(0, 2),
    window=st.integers(1, 20),
)
def test_drafts_are_those_of_a_scan_of_the_whole_text(parts, num_drafts, shortest, more, window):
    lookup, tokens = PromptLookup(shortest + more, shortest, window), []
    for part in parts:
        tokens += part
        expected = naive(tokens, num_drafts, shortest + more, shortest, window) if num_drafts else []
        assert lookup.propose(tokens, num_drafts) == expected


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ("the cat sat on the mat . the cat", "sat on the mat"),
        ("a b a b", "a b a b"),
        ("x y z", ""),
        ("x y 1 . x y 2 . x y", "2 . x y"),
        ("p x y 1 . q x y 2 . p x y", "1 . q x"),
    ],
)
def test_the_longest_and_then_the_latest_place_counts(text, drafts):
    assert PromptLookup().propose(text.split(), 4) == drafts.split()


def test_the_index_of_a_long_text_keeps_its_size():
    lookup, tokens = PromptLookup(window=100), []
    for i in range(5000):
        tokens.append(i * i % 977)
        lookup.propose(tokens, 3)
    assert len(lookup._next) <= 2 * 100
