from rayplane.runtime.ray.retained import retained
from rayplane.spec.plan import Slot


def slots(*nodes: str, per: int = 2) -> tuple[Slot, ...]:
    """A replica on each node."""
    return tuple(Slot(r, 0, 0, tuple(range(r * per, (r + 1) * per)), node, node) for r, node in enumerate(nodes))


HAS = slots("a", "b", "c")


def test_same_launch_and_fewer_replicas_stay_where_they_are() -> None:
    assert retained(HAS, HAS, HAS) == [0, 1, 2]
    assert retained(HAS[:2], HAS, HAS) == [0, 1]


def test_planned_slots_mean_the_bundles_that_were_bound_for_them() -> None:
    assert retained(slots("", "", ""), slots("", "", ""), HAS) == [0, 1, 2]
    assert retained(slots("a", "b"), slots("a", "b"), slots("c", "b")) == [0, 1]


def test_replicas_move_up_when_an_earlier_one_is_lost() -> None:
    assert retained(slots("b", "c"), HAS, HAS) == [1, 2]
    assert retained(slots("c", "b"), HAS, HAS) == [2, 1]


def test_node_without_a_bundle_or_with_one_of_another_size_will_not_do() -> None:
    assert retained(slots("b", "d"), HAS, HAS) is None
    assert retained(slots("b", "b"), HAS, HAS) is None
    assert retained(slots("b", per=1), HAS, HAS) is None
