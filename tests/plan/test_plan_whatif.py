"""What-ifs: how they are written, what they change, and what the planner would do then."""

import pytest

from rayplane.errors import SpecError
from rayplane.plan.machine.catalog import described, device, homogeneous
from rayplane.plan.step.profile import with_profile
from rayplane.plan.why.change import ALIASES, How, changes
from rayplane.plan.why.changed import CHANGES, Setting
from rayplane.plan.why.explain import explain
from rayplane.plan.why.study import Study, study
from rayplane.plan.why.whatif import setting_of, what_if
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload
from tests.plan.profiles import measured

MODEL = ModelSpec(layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, mlp=8192, vocab=32000, name="small")
WORK = Workload(global_batch=32, seq_len=4096, precision="bf16")


def cluster() -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device="h100-sxm", devices=4, count=2)]))


@pytest.fixture(scope="module")
def of() -> Study:
    return study(MODEL, WORK, cluster(), None)


def changed(written: str) -> Setting:
    return setting_of(written, Setting(cluster(), WORK))


@pytest.mark.parametrize(
    ("written", "how", "value"),
    [
        ("nic=2x", How.TIMES, 2),
        ("nic=x2", How.TIMES, 2),
        ("nic = 0.5x", How.TIMES, 0.5),
        ("fabric=+25%", How.TIMES, 1.25),
        ("hbm=-10%", How.TIMES, 0.9),
        ("nic=400Gb/s", How.EXACTLY, 50),
        ("nic=50GB/s", How.EXACTLY, 50),
        ("nvlink=900", How.EXACTLY, 900),
        ("latency=5us", How.EXACTLY, 5),
        ("latency=1 ms", How.EXACTLY, 1000),
        ("memory=80GB", How.EXACTLY, 80),
        ("gpus=+8", How.PLUS, 8),
        ("devices=-4", How.PLUS, -4),
        ("seq_len=32k", How.EXACTLY, 32768),
    ],
)
def test_a_change_is_read_in_any_form(written: str, how: How, value: float) -> None:
    (change,) = changes(written)
    assert change.how is how
    assert change.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("nic", "--what-if nic: write a quantity and how much of it, such as nic=2x; quantities: nic, nvlink"),
        ("nic=", "write a quantity and how much of it"),
        ("nics=fast", "--what-if nics=fast: cannot read 'fast'; write a factor (2x), a change (+8, +25%) or GB/s of a device's"),
        ("nicc=2x", "'nicc' is nothing that can be changed; did you mean nic? Quantities: nic, nvlink, latency, hbm"),
        ("nic=5us", "cannot read '5us'"),
        ("nic=0x", "--what-if nic=0x: '0x' is no sensible amount; use more than nothing"),
        ("hbm=1e99", "cannot read '1e99'"),
        ("nic=99999999999x", "is no sensible amount"),
        ("hbm=-80", "--what-if hbm=-80: leaves 0 GB; use a change that leaves 1e-06 to 10,000,000"),
        ("nic=999999x,nic=999999x", "--what-if nic=999999x: leaves 5e+07 GB/s; use a change that leaves 1e-06"),
        ("nvlink=0.000001x,nvlink=0.000001x", "--what-if nvlink=0.000001x: leaves 4.5e-10 GB/s; use a change"),
        ("devices=-8", "leaves 0 devices; use a change that leaves a whole number from 1"),
        ("devices=1.03x", "leaves 8.24 devices"),
        ("nodes=0.5", "leaves 0.5 nodes"),
        ("island=6", "an island of 6 devices is not made of whole nodes of 4; use a multiple"),
        ("gpu=h10", "--what-if gpu=h10: unknown device kind 'h10', did you mean 'h100-sxm'"),
        ("batch=-32", "leaves 0 samples"),
        ("nic=2x,", "write a quantity and how much of it"),
        ("nic=-100%", "is no sensible amount"),
    ],
)
def test_a_bad_change_names_itself_and_the_remedy(written: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        changed(written)
    assert said in str(error.value)


def test_a_bad_change_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(SpecError, match="cannot read 'lots'"):
        explain(MODEL, WORK, cluster(), None, ["nic=2x", "hbm=lots"])


def test_every_quantity_can_be_changed() -> None:
    assert ALIASES.keys() == CHANGES.keys()


def test_links_memory_and_kind_are_changed() -> None:
    assert changed("nic=2x").cluster.links.fabric.gbytes_s == 100
    assert changed("nvlink=0.5x").cluster.links.island.gbytes_s == 225
    assert changed("latency=2x").cluster.links.island.latency_us == 7
    assert changed("latency=5us").cluster.links.fabric.latency_us == 5
    assert changed("hbm=141").cluster.memory_bytes == 141 * 10**9
    both = changed("nic=2x, hbm=2x")
    assert (both.cluster.links.fabric.gbytes_s, both.cluster.memory_bytes) == (100, 160 * 10**9)
    assert both.meaning == "network card 50 → 100 GB/s per device; memory 80 → 160 GB per device"
    h200 = changed("gpu=h200").cluster
    assert {(n.kind, n.memory_bytes) for n in h200.nodes} == {("h200", 141 * 10**9)}


def test_what_was_measured_of_a_link_goes_when_the_link_does() -> None:
    cpus = homogeneous({"here": 2}, "cpu", 4 * 10**9, {})
    known = with_profile(cpus, measured(cpus, device("cpu")))
    assert known.profile is not None
    fabric, island = (setting_of(written, Setting(known, WORK)).cluster.profile for written in ("nic=2x", "nvlink=2x"))
    assert (fabric.messages, fabric.collectives) == (known.profile.messages, known.profile.collectives), "all of it is of the island"
    assert (island.messages, island.collectives) == ((), ())
    assert island.products == known.profile.products


def test_a_measured_cluster_is_explained_by_its_measurements() -> None:
    model = ModelSpec(layers=4, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=352, vocab=256, name="tiny")
    cpus = homogeneous({"here": 2}, "cpu", 4 * 10**9, {})
    known = with_profile(cpus, measured(cpus, device("cpu")))
    told = explain(model, Workload(4, 32, "fp32"), known, LayoutSection(tp=2), ["nvlink=2x"])
    assert "(link inside: measured and rings inside: measured)" in told.axes[0].arithmetic
    assert told.figures.startswith("measured 2026-11-30 on imaginary: ")
    assert told.what_ifs[0].best_s > 0


def test_devices_come_and_go_with_their_islands() -> None:
    more = changed("devices=+6").cluster
    assert [(n.devices, n.island) for n in more.nodes] == [
        (4, "node-0"),
        (4, "node-1"),
        (4, "node-0+1"),
        (2, "node-1+1"),
    ]
    assert len({n.name for n in more.nodes}) == 4
    assert [n.devices for n in changed("devices=5").cluster.nodes] == [4, 1]
    assert changed("nodes=2x").cluster.num_devices == 16
    assert [len(nodes) for nodes in changed("island=8").cluster.islands.values()] == [2]


@pytest.mark.parametrize("written", ["nic=2x", "nvlink=2x", "latency=0.5x", "hbm=2x", "devices=2x", "gpu=h200"])
def test_more_is_never_slower(of: Study, written: str) -> None:
    found = what_if(of, written)
    assert found.best_s is not None
    assert found.best_s <= of.plan.estimate.step_s * (1 + 1e-9)


@pytest.mark.parametrize("written", ["nic=0.5x", "nvlink=0.1x", "latency=4x", "devices=0.5x"])
def test_less_is_never_faster(of: Study, written: str) -> None:
    found = what_if(of, written)
    assert found.best_s is not None
    assert found.best_s >= of.plan.estimate.step_s * (1 - 1e-9)


def test_more_devices_change_the_layout(of: Study) -> None:
    found = what_if(of, "devices=+4")
    assert found.best is not None
    assert 8 < found.best.size <= 12
    assert found.same_layout_s == pytest.approx(of.plan.estimate.step_s, rel=0.01)
    assert "per device" in found.finding


def test_the_same_devices_change_nothing(of: Study) -> None:
    found = what_if(of, "devices=8")
    assert found.best == of.layout
    assert found.same_layout_s == found.best_s == of.plan.estimate.step_s
    assert "the same layout" in found.finding


def test_what_no_longer_runs_says_why(of: Study) -> None:
    fewer = what_if(of, "devices=4")
    assert fewer.same_layout_s is None
    assert f"{of.layout} would not run: it needs 8 devices" in fewer.finding
    nothing = what_if(of, "hbm=1")
    assert (nothing.best, nothing.best_s) == (None, None)
    assert nothing.finding.startswith("no plan: no layout fits this cluster")


def test_a_larger_batch_is_compared_by_tokens(of: Study) -> None:
    found = what_if(of, "batch=4x")
    assert found.best_s > of.plan.estimate.step_s
    assert "tokens/s instead of" in found.finding
