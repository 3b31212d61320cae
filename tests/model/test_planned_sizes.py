"""What the planner, which knows no torch, must know of the model."""

from rayplane.model import loss
from rayplane.plan.step import activations, replicas
from rayplane.train import flat


def test_the_planner_knows_how_many_logits_exist_at_a_time() -> None:
    assert activations.SLICE_ELEMENTS == loss.SLICE_ELEMENTS


def test_the_planner_knows_how_much_is_reduced_in_one_go() -> None:
    assert replicas.LEAST_BUCKET_BYTES == flat.BUCKET_BYTES
