"""What the planner, which knows no torch, must know of the model."""

from rayplane.model import loss
from rayplane.plan import memory


def test_the_planner_knows_how_many_logits_exist_at_a_time() -> None:
    assert memory.SLICE_ELEMENTS == loss.SLICE_ELEMENTS
