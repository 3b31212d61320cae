"""What the executor leaves idle is what the planner says it will, under every schedule, on four ranks."""

import pytest

from benchmarks import bubble
from benchmarks.bubble import SCHEDULES, compare
from rayplane.spec.builders import BUILDERS

POINTS = 0.03
SLOWER = 3.0
"""Naps are so many times as long as in the benchmark: what a machine takes to wake a thread counts less."""
ATTEMPTS = 5
"""What else runs on the machine can only add to a bubble, so one undisturbed attempt is proof."""


@pytest.mark.parametrize("schedule", BUILDERS)
def test_measured_bubble_is_the_played_one(schedule, monkeypatch):
    for name in ("FORWARD_S", "INPUT_S", "WEIGHT_S"):
        monkeypatch.setattr(bubble, name, SLOWER * getattr(bubble, name))
    bubbles = []
    for _ in range(ATTEMPTS):
        played, seen = compare(schedule, num_microbatches=6, uneven=False)
        assert [[s.action for s in row] for row in seen.ranks] == [[s.action for s in row] for row in played.ranks]
        bubbles.append(seen.bubble)
        if seen.bubble == pytest.approx(played.bubble, abs=POINTS):
            break
    print(f"{schedule}: played {played.bubble:.1%}, measured {', '.join(f'{b:.1%}' for b in bubbles)}")
    assert bubbles[-1] == pytest.approx(played.bubble, abs=POINTS)


def test_every_schedule_is_measured():
    assert SCHEDULES.keys() == BUILDERS.keys()
