"""A job whose stages go elsewhere than planned is priced there, and says so."""

from rayplane.cli.bound import Repriced, taken
from rayplane.plan.choice.bind import bind
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.step.train import price
from rayplane.runtime.group import Launch
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement, Workload

MODEL = ModelSpec(layers=8, hidden=2048, heads=16, kv_heads=16, head_dim=128, mlp=8192, vocab=32000)
WORK = Workload(16, 2048, "bf16")
CLUSTER = homogeneous({"a": 4, "b": 2, "c": 2}, "h100-sxm", 80 * 10**9, {})
LAYOUT = Layout(tp=4, micro_batch=2, boundaries=(8,))


def repriced() -> tuple[Repriced, list[float], list[str]]:
    predicted: list[float] = []
    said: list[str] = []
    return Repriced(MODEL, WORK, CLUSTER, predicted.append, said.append), predicted, said


def test_a_tp_group_that_spreads_is_predicted_to_be_slower_and_named():
    planned = place(LAYOUT, CLUSTER)
    bound = bind(LAYOUT, planned, CLUSTER.nodes[1:], "anywhere")
    tell, predicted, said = repriced()
    tell(Launch("job", LAYOUT, planned, "entry", {}), bound)
    near_s = price(MODEL, WORK, taken(CLUSTER, planned), LAYOUT).step_s
    assert predicted[0] > 1.2 * near_s
    assert said == [
        "placed on b, c instead of a, tp groups not in one island each (limits.fallback), but wherever there was room: "
        f"a step is predicted to take {predicted[0] * 1e3:,.4g} ms instead of {near_s * 1e3:,.4g} ms"
    ]


def test_another_island_of_the_same_size_costs_nothing():
    cluster = homogeneous({"a": 4, "d": 4}, "h100-sxm", 80 * 10**9, {})
    planned = place(LAYOUT, cluster)
    bound = bind(LAYOUT, planned, cluster.nodes[1:], "island")
    tell, predicted, said = repriced()
    tell(Launch("job", LAYOUT, planned, "entry", {}), bound)
    assert predicted == [price(MODEL, WORK, cluster, LAYOUT).step_s]
    assert said[0].startswith("placed on d instead of a: ")


def test_what_is_taken_is_a_cluster_of_the_devices_in_use():
    planned = place(Layout(dp=5), CLUSTER)
    used = taken(CLUSTER, planned)
    assert [(node.name, node.devices, node.kind) for node in used.nodes] == [("a", 4, "h100-sxm"), ("b", 1, "h100-sxm")]
    assert used.links == CLUSTER.links
    assert taken(CLUSTER, Placement(())).nodes == ()
