"""Measured figures go before the catalog's, and each says which it is."""

from dataclasses import replace

import pytest

from rayplane.errors import SpecError
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.step.profile import device_of, figures, in_words, with_profile
from rayplane.spec.plan import Workload
from tests.plan.profiles import MODEL, measured

HERE = homogeneous({"here": 2}, "cpu", 10**10, {})


def sources(cluster, precision="fp32"):
    return {figure.name: figure.source for figure in figures(cluster, precision)}


def test_a_figure_is_measured_or_from_the_table_or_assumed():
    bare = sources(HERE)
    assert (bare["products"], bare["link inside"], bare["link across"]) == ("table", "table", "assumed")
    assert "measured" not in bare.values()
    known = sources(with_profile(HERE, measured(HERE, device("cpu"))))
    assert {known[name] for name in ("products", "attention", "memory", "launch", "jitter", "rings inside", "link inside")} == {
        "measured"
    }
    assert (known["host"], known["link across"]) == ("table", "assumed")


def test_what_was_measured_in_another_precision_is_not_measured():
    known = sources(with_profile(HERE, measured(HERE, device("cpu"))), "bf16")
    assert (known["products"], known["link inside"]) == ("table", "measured")


def test_the_catalog_assumes_only_figures_that_there_are():
    names = {figure.name for figure in figures(HERE, "bf16")}
    kinds = ("a100-80gb", "h100-sxm", "h100-pcie", "b200", "l40s", "mi300x", "cpu")
    assert not set().union(*(device(kind).assumed for kind in kinds)) - names


def test_sources_are_said_in_words():
    known = with_profile(HERE, measured(HERE, device("cpu")))
    assert in_words(known, "fp32").startswith("measured 2026-11-30 on imaginary: products, attention")
    assert in_words(known, "fp32").endswith("assumed: rings across, link across, latency across")


def test_a_profile_of_other_devices_is_refused_with_the_remedy():
    gpus = homogeneous({"here": 8}, "h100-sxm", 80 * 10**9, {})
    with pytest.raises(
        SpecError, match=r"^p\.yaml: hardware\.device: measured on cpu, the cluster has h100-sxm; run `rayplane calibrate`"
    ):
        with_profile(gpus, measured(HERE, device("cpu")), "p.yaml")


def test_collectives_and_links_are_those_that_were_measured():
    known = with_profile(HERE, measured(HERE, device("cpu"), link_bytes_s=8e9, latency_s=5e-5))
    network = Network(known.links, device_of(known, "fp32"))
    pair = Group(2, 2)
    for num_bytes in (1 << 12, 1 << 22, 1 << 26):
        assert network.all_gather_s(pair, num_bytes) == pytest.approx(5e-5 + num_bytes / 2 / 8e9, rel=1e-3)
        assert network.all_reduce_s(pair, num_bytes) == pytest.approx(1e-4 + num_bytes / 8e9, rel=1e-3)
        assert network.p2p_s(num_bytes, inside=True) == pytest.approx(5e-5 + num_bytes / 8e9, rel=1e-3)
    assert known.links.island.gbytes_s == pytest.approx(8, rel=1e-3)
    assert known.links.fabric == HERE.links.fabric


def test_groups_of_another_shape_are_priced_by_what_was_measured():
    """Rings of four, on links that were seen to be twice as fast, take half as long but for their latency."""
    eight = homogeneous({"here": 8}, "cpu", 10**10, {})
    networks = []
    for bytes_s in (4e9, 8e9):
        known = with_profile(eight, measured(HERE, device("cpu"), link_bytes_s=bytes_s, latency_s=0.0))
        networks.append(Network(known.links, device_of(known, "fp32")))
    slow, fast = (n.all_gather_s(Group(4, 4), 1 << 26) for n in networks)
    assert slow == pytest.approx(3 / 4 * (1 << 26) / 4e9, rel=0.02)
    assert fast == pytest.approx(slow / 2, rel=0.02)


def test_faster_devices_make_faster_plans():
    truth = device("cpu")
    faster = replace(truth, gemm_efficiency=2 * truth.gemm_efficiency)
    workload = Workload(16, 256, "fp32")
    slow, fast = (plan(MODEL, workload, with_profile(HERE, measured(HERE, d)), None).estimate.step_s for d in (truth, faster))
    assert 0.4 < fast / slow < 0.7
