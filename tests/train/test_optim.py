"""The learning rate over a run, and what gradients are scaled with."""

import pytest

from rayplane.spec.job import OptimizerSection
from rayplane.train.optim import clip_scale, learning_rate


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", [3.0, 6.0, 6.0, 5.0, 4.0, 3.0, 2.0]),
        ("cosine", [3.0, 6.0, 6.0, 4 + 2**0.5, 4.0, 4 - 2**0.5, 2.0]),
        ("constant", [3.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0]),
    ],
)
def test_the_rate_rises_to_its_peak_and_falls_to_its_least_at_the_last_step(schedule, rates):
    section = OptimizerSection(lr=6.0, min_lr=2.0, warmup_steps=2, schedule=schedule)
    assert [learning_rate(section, step, 7) for step in range(7)] == pytest.approx(rates)


def test_without_warm_up_the_first_step_has_the_peak():
    assert [learning_rate(OptimizerSection(lr=6.0, schedule="linear"), step, 3) for step in range(3)] == [6.0, 3.0, 0.0]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_that_ends_within_its_warm_up_does_not_reach_its_peak(steps):
    section = OptimizerSection(lr=6.0, warmup_steps=3)
    assert [learning_rate(section, step, steps) for step in range(steps)] == pytest.approx([2.0, 4.0, 6.0][:steps])


@pytest.mark.parametrize(("norm", "clip", "scale"), [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (9.0, 0.0, 1.0)])
def test_only_gradients_above_the_clip_are_scaled_and_none_without_one(norm, clip, scale):
    assert clip_scale(norm, clip) == scale
