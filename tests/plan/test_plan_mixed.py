"""Clusters of several kinds: stages sized to their devices in time and memory, and placed on them."""

import pytest

from rayplane.plan.choice.place import place
from rayplane.plan.choice.report import as_json, report
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import described
from rayplane.plan.step.runs import fleet
from rayplane.plan.step.train import Pricer, price
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, LinkSection, LinksSection, NodeSection
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Estimate, Workload

WORK = Workload(global_batch=256, seq_len=4096, precision="bf16")


def nodes(kind: str, count: int = 1, devices: int = 8, **more: object) -> NodeSection:
    return NodeSection(device=kind, devices=devices, count=count, name=kind, **more)


def cluster(*of: NodeSection) -> ClusterSpec:
    return described(ClusterSection(nodes=list(of)))


A100S, H100S = nodes("a100-80gb"), nodes("h100-sxm")
BOTH = cluster(A100S, H100S)


def by_stage(layout: Layout, on: ClusterSpec) -> dict[int, set[str]]:
    kinds = {node.name: node.kind for node in on.nodes}
    out: dict[int, set[str]] = {}
    for slot in place(layout, on).slots:
        out.setdefault(slot.stage, set()).add(kinds[slot.node])
    return out


def test_each_stage_is_on_one_kind_and_gets_layers_by_its_speed(llama3_8b: ModelSpec) -> None:
    layout = Layout(dp=4, pp=2, tp=2)
    pricer = Pricer(llama3_8b, WORK, BOTH)
    outline = pricer.outline(layout)
    estimate = pricer.price(pricer.draft(outline))
    slow, fast = outline.layout.boundaries
    print(outline.layout, estimate.stage_s, estimate.stage_kinds)
    assert estimate.stage_kinds == ("a100-80gb", "h100-sxm")
    assert by_stage(layout, BOTH) == {0: {"a100-80gb"}, 1: {"h100-sxm"}}
    # An A100 is less than half as fast, and the head is on the last stage.
    assert slow < fast / 2
    a_layer_s = estimate.stage_s[0] / slow
    assert abs(estimate.stage_s[0] - estimate.stage_s[1]) < a_layer_s


def test_two_kinds_are_better_than_the_faster_alone_and_worse_than_all_of_it(llama3_8b: ModelSpec) -> None:
    def step_s(on: ClusterSpec) -> float:
        return plan(llama3_8b, WORK, on, None).estimate.step_s

    assert step_s(cluster(nodes("h100-sxm", 2))) < step_s(BOTH) < step_s(cluster(H100S)) < step_s(cluster(A100S))


def test_a_run_of_stages_is_priced_as_a_cluster_of_its_kind_would_be(llama3_8b: ModelSpec) -> None:
    def compute_s(on: ClusterSpec, boundaries: tuple[int, ...]) -> tuple[float, ...]:
        return price(llama3_8b, WORK, on, Layout(dp=4, pp=2, tp=2, boundaries=boundaries)).stage_s

    mixed = compute_s(BOTH, (10, 22))
    assert mixed[0] == compute_s(cluster(nodes("a100-80gb", 2)), (10, 22))[0]
    assert mixed[1] == compute_s(cluster(nodes("h100-sxm", 2)), (10, 22))[1]


def test_of_one_kind_nothing_changes_whatever_the_nodes_are_called(llama3_8b: ModelSpec) -> None:
    alike = cluster(nodes("h100-sxm", memory_gb=80), NodeSection(device="H100-SXM", devices=8, name="other"))
    estimate = price(llama3_8b, WORK, alike, Layout(dp=4, pp=2, tp=2))
    assert estimate == price(llama3_8b, WORK, cluster(nodes("h100-sxm", 2)), Layout(dp=4, pp=2, tp=2))
    assert estimate.stage_kinds == ()


def test_a_smaller_device_gets_no_more_layers_than_fit(llama3_8b: ModelSpec) -> None:
    layout = Layout(dp=8, pp=2, zero=1)
    small = cluster(nodes("h100-sxm"), NodeSection(device="h100-sxm", devices=8, name="small", memory_gb=32))
    pricer = Pricer(llama3_8b, WORK, small)
    outline = pricer.outline(layout)
    large, little = outline.layout.boundaries
    print(outline.layout, [m.total for m in outline.memory])
    assert little < 12 < large
    assert outline.memory[1].total <= 32e9
    # One layer more would not fit.
    more = pricer.outline(Layout(dp=8, pp=2, zero=1, boundaries=(large - 1, little + 1)))
    assert more.memory[1].total > 32e9
    assert more.memory_bytes > pricer.device_bytes


def test_memory_is_judged_by_the_stage_that_has_least_room(llama3_8b: ModelSpec) -> None:
    small = cluster(nodes("h100-sxm"), NodeSection(device="h100-sxm", devices=8, name="small", memory_gb=40))
    estimate = price(llama3_8b, WORK, small, Layout(dp=8, pp=2, zero=1, boundaries=(10, 22)))
    assert estimate.verdict == "does not fit"
    assert 40e9 < estimate.memory_bytes < 80e9


def test_kinds_with_more_memory_come_first(llama3_8b: ModelSpec) -> None:
    large_last = cluster(nodes("a100-40gb"), nodes("h100-sxm"))
    assert price(llama3_8b, WORK, large_last, Layout(dp=2, pp=2, tp=4)).stage_kinds == ("h100-sxm", "a100-40gb")


def test_where_a_kind_has_no_room_for_a_stage_the_slowest_sets_the_pace(llama3_8b: ModelSpec) -> None:
    def times(on: ClusterSpec) -> Estimate:
        return price(llama3_8b, WORK, on, Layout(dp=16, zero=3))

    mixed, slow = times(BOTH), times(cluster(nodes("a100-80gb", 2)))
    assert mixed.stage_kinds == ()
    assert mixed.time_s["compute"] == slow.time_s["compute"]


def test_three_kinds_lie_along_the_pipe(llama3_8b: ModelSpec) -> None:
    three = cluster(nodes("v100", devices=4), nodes("a100-80gb", devices=4), nodes("h100-sxm", 2, devices=4))
    layout = Layout(dp=2, pp=4, tp=2)
    found = price(llama3_8b, WORK, three, layout)
    assert found.stage_kinds == ("a100-80gb", "h100-sxm", "h100-sxm", "v100")
    assert by_stage(layout, three) == {i: {kind} for i, kind in enumerate(found.stage_kinds)}


def test_a_layout_that_leaves_devices_idle_takes_the_faster_ones(llama3_8b: ModelSpec) -> None:
    found = plan(llama3_8b, WORK, BOTH, LayoutSection(dp=1, tp=8, zero=0))
    assert {slot.node for slot in found.placement.slots} == {"h100-sxm"}
    assert report(found).notes[-1].startswith("runs on h100-sxm alone; a100-80gb ")


def test_slow_devices_that_only_cost_time_stay_idle(llama3_8b: ModelSpec) -> None:
    work = Workload(global_batch=32, seq_len=2048, precision="bf16")
    on = cluster(nodes("h100-sxm"), nodes("cpu", devices=1, memory_gb=900))
    found, alone = plan(llama3_8b, work, on, None), plan(llama3_8b, work, cluster(nodes("h100-sxm")), None)
    assert found.estimate.step_s == alone.estimate.step_s
    assert {slot.node for slot in found.placement.slots} == {"h100-sxm"}


def test_stages_talk_inside_their_own_islands_by_their_own_links(llama3_8b: ModelSpec) -> None:
    def tp_s(on: ClusterSpec) -> float:
        layout = Layout(pp=2, tp=8, boundaries=(1, 31))
        return price(llama3_8b, WORK, on, layout).time_s["tp"]

    assert tp_s(BOTH) == tp_s(cluster(nodes("h100-sxm", 2)))
    named = LinksSection(island=LinkSection(gbytes_s=50, latency_us=10))
    slow = described(ClusterSection(nodes=[A100S, H100S], links=named))
    assert tp_s(slow) > 2 * tp_s(BOTH)


def test_the_text_says_which_stages_are_on_which_kind(llama3_8b: ModelSpec) -> None:
    found = plan(llama3_8b, WORK, BOTH, LayoutSection(dp=2, pp=4, tp=2))
    cut = found.layout.boundaries
    assert report(found).notes == (
        f"stages 0-1 ({cut[0] + cut[1]} layers) on a100-80gb, stages 2-3 ({cut[2] + cut[3]} layers) on h100-sxm: "
        "layers by how fast and how large the devices of each stage are",
    )
    assert as_json(found)["stage_kinds"] == ("a100-80gb", "a100-80gb", "h100-sxm", "h100-sxm")


@pytest.mark.parametrize("schedule, vpp", [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2)])
def test_every_schedule_runs_over_two_kinds(schedule: str, vpp: int, llama3_8b: ModelSpec) -> None:
    layout = Layout(dp=4, pp=2, tp=2, schedule=schedule, vpp=vpp)
    mixed, slow, fast = (
        price(llama3_8b, WORK, on, layout).step_s for on in (BOTH, cluster(nodes("a100-80gb", 2)), cluster(nodes("h100-sxm", 2)))
    )
    assert fast < mixed < slow


def test_runs_cover_the_pipe_and_no_kind_holds_more_than_it_has() -> None:
    of = fleet(cluster(nodes("v100", 3, devices=6), nodes("a100-80gb", 2), nodes("h100-sxm", devices=4)))
    for dp, pp, tp in [(1, 5, 4), (2, 3, 2), (3, 4, 3), (1, 17, 2), (4, 2, 4), (38, 1, 1)]:
        runs = of.runs(Layout(dp=dp, pp=pp, tp=tp))
        assert [run.first for run in runs] == [sum(r.stages for r in runs[:i]) for i in range(len(runs))]
        assert sum(run.stages for run in runs) == pp
        for run in runs:
            assert run.pool == len(of.pools) - 1 or run.stages * dp <= of.pools[run.pool].topology.groups(tp)


def test_a_device_without_room_for_anything_is_no_endless_search(llama3_8b: ModelSpec) -> None:
    tiny = cluster(nodes("h100-sxm"), NodeSection(device="h100-sxm", devices=8, name="tiny", memory_gb=0.001))
    assert price(llama3_8b, WORK, tiny, Layout(dp=8, pp=2)).verdict == "does not fit"
