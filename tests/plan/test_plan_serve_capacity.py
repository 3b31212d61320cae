"""What replicas of a chosen cut hold, and where they go: the same answers as the plan gave."""

import pytest

from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.serving.serve_capacity import Measured, capacity_of
from rayplane.plan.serving.serving import plan_of
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_model

RATE, PROMPT, OUTPUT = 40.0, 512, 128


@pytest.fixture(scope="module")
def planned():
    """(plan, capacity) of an 8B model at a rate, on two nodes of eight GPUs."""
    serve = {
        "slo": {"ttft_ms": 400, "tpot_ms": 25},
        "load": {"requests_s": RATE, "prompt_tokens": PROMPT, "output_tokens": OUTPUT},
        "replicas": {"max": 6},
    }
    job = ServeJob.model_validate({"name": "svc", "model": {"preset": "llama3-8b"}, "serve": serve})
    model, cluster = load_model(job.model), homogeneous({"a": 8, "b": 8}, "h100-sxm", 80 * 10**9, {})
    plan = plan_of(job, model, cluster)
    return plan, capacity_of(job, model, cluster, plan.best)


def test_it_holds_what_the_plan_was_made_for_and_not_much_more(planned):
    plan, capacity = planned
    assert not plan.best.misses
    assert capacity.holds(plan.best.replicas, Measured(RATE, PROMPT, OUTPUT))
    assert not capacity.holds(plan.best.replicas, Measured(20 * RATE, PROMPT, OUTPUT))


def test_more_replicas_hold_more_and_longer_prompts_need_more(planned):
    _, capacity = planned
    rates = [Measured(rate, PROMPT, OUTPUT) for rate in range(10, 400, 30)]
    held = [max((measured.requests_s for measured in rates if capacity.holds(n, measured)), default=0) for n in (1, 2, 4)]
    assert held == sorted(held) and held[2] > held[0]
    least = [next(n for n in range(1, 100) if capacity.holds(n, Measured(60.0, prompt, OUTPUT))) for prompt in (128, 2048)]
    assert least[0] < least[1]


def test_nothing_asked_is_held_by_any_number(planned):
    assert planned[1].holds(1, Measured(0.0, 0.0, 0.0))


def test_there_is_a_place_for_each_of_the_most_replicas(planned):
    plan, capacity = planned
    placement, size = capacity.placement(), plan.best.cut.size
    assert capacity.most == 6
    assert sorted(rank for slot in placement.slots for rank in slot.ranks) == list(range(6 * size))
    assert capacity.layout.dp == 1 and capacity.layout.boundaries == plan.best.boundaries
