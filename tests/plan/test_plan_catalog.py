"""Devices by name and clusters by description."""

import pytest
from pydantic import ValidationError

from rayplane.errors import SpecError
from rayplane.plan.machine.catalog import described, device, homogeneous
from rayplane.spec.cluster_section import ClusterSection, LinkSection, LinksSection, NodeSection


def test_every_kind_of_the_catalog_is_complete() -> None:
    for kind in ("a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie", "h200", "b200", "l40s", "mi300x", "cpu"):
        found = device(kind)
        assert found.name == kind
        assert found.memory_bytes > 10**9
        assert found.peak_flops["bf16"] > found.peak_flops["fp32"] > 0
        assert 0 < found.gemm_efficiency <= 1
        assert found.links.island.gbytes_s >= found.links.fabric.gbytes_s


@pytest.mark.parametrize(
    ("wrong", "meant"), [("h100", "h100-sxm' or 'h100-pcie"), ("a100-80g", "a100-80gb"), ("MI300", "mi300x"), ("L40", "l40s")]
)
def test_an_unknown_kind_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(SpecError, match=f"unknown device kind '{wrong}', did you mean '{meant}'"):
        device(wrong)


def test_every_unknown_kind_of_a_cluster_is_reported_with_its_field() -> None:
    section = ClusterSection(
        nodes=[NodeSection(device="h10", devices=1), NodeSection(device="cpu", devices=1), NodeSection(device="b20", devices=1)]
    )
    with pytest.raises(SpecError) as caught:
        described(section)
    assert [p.field for p in caught.value.problems] == ["cluster.nodes[0].device", "cluster.nodes[2].device"]


def test_a_described_cluster_takes_from_the_catalog_what_the_job_leaves_out() -> None:
    nodes = [
        NodeSection(device="H200", devices=4, count=2, name="big", island="nvl"),
        NodeSection(device="h200", devices=8, memory_gb=96),
    ]
    cluster = described(ClusterSection(nodes=nodes, links=LinksSection(fabric=LinkSection(gbytes_s=12.5, latency_us=3))))
    assert [n.name for n in cluster.nodes] == ["big-0", "big-1", "node"]
    assert {name: len(members) for name, members in cluster.islands.items()} == {"nvl": 2, "node": 1}
    assert cluster.memory_bytes == 96 * 10**9
    assert (cluster.links.fabric.gbytes_s, cluster.links.island.gbytes_s) == (12.5, 450)


def test_two_nodes_of_one_name_are_an_error() -> None:
    with pytest.raises(SpecError, match="two nodes are called 'node'"):
        described(ClusterSection(nodes=[NodeSection(device="cpu", devices=1), NodeSection(device="cpu", devices=2)]))


def test_mixed_kinds_get_the_slower_links() -> None:
    nodes = [NodeSection(device="h100-sxm", devices=8, name="a"), NodeSection(device="a100-80gb", devices=8, name="b")]
    assert described(ClusterSection(nodes=nodes)).links.island.gbytes_s == 300


def test_a_discovered_node_is_its_own_island_unless_told_otherwise() -> None:
    cluster = homogeneous({"a": 2, "b": 2, "empty": 0}, "cpu", 10**9, {"b": "rack"})
    assert [(n.name, n.island, n.memory_bytes) for n in cluster.nodes] == [("a", "a", 10**9), ("b", "rack", 10**9)]


@pytest.mark.parametrize(
    ("link", "field"),
    [
        ({"gbytes_s": 1e300, "latency_us": 0}, "gbytes_s"),
        ({"gbytes_s": 5e-324, "latency_us": 0}, "gbytes_s"),
        ({"gbytes_s": 50, "latency_us": 1e308}, "latency_us"),
    ],
)
def test_a_link_that_nobody_has_is_refused(link: dict[str, float], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        LinkSection.model_validate(link)
