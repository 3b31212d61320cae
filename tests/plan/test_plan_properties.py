"""What holds of every plan, whatever the model and the cluster: more of anything good never costs time, and units are consistent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import DeviceKind, described, device
from rayplane.plan.step.train import price
from rayplane.spec.cluster import ClusterSpec, Link, Links
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Plan, Workload

GPUS = ("a100-80gb", "h100-sxm", "l40s", "mi300x")
EPS = 1e-9
SCHEDULES = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2))

models = st.builds(
    lambda layers, heads, group, dim, mlp, vocab, tied: ModelSpec(
        layers=layers, hidden=heads * dim, heads=heads, kv_heads=heads // group, head_dim=dim, mlp=mlp, vocab=vocab, tied=tied
    ),
    layers=st.integers(1, 12),
    heads=st.sampled_from([4, 8, 16]),
    group=st.sampled_from([1, 2, 4]),
    dim=st.sampled_from([64, 128]),
    mlp=st.integers(1024, 16384),
    vocab=st.integers(1000, 130000),
    tied=st.booleans(),
)
small_models = models.filter(lambda model: model.layers <= 4)
works = st.builds(Workload, st.integers(4, 48), st.sampled_from([512, 1000, 4096]), st.just("bf16"))
shapes = st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 4), (3, 2), (2, 2)])
kinds = st.sampled_from(GPUS)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    devices, count = draw(shapes)
    return described(ClusterSection(nodes=[NodeSection(device=draw(kinds), devices=devices, count=count)]))


@st.composite
def layouts(draw: st.DrawFn, model: ModelSpec, work: Workload, devices: int) -> Layout:
    """One that is possible; it may leave devices idle and groups may leave their islands."""
    pp = draw(st.sampled_from([p for p in (1, 2, 3, 4) if p <= min(model.layers, devices)]))
    tp = draw(st.sampled_from([t for t in (1, 2, 4) if pp * t <= devices]))
    dp = draw(st.integers(1, min(devices // (pp * tp), work.global_batch)))
    schedule, vpp = draw(st.sampled_from([s for s in SCHEDULES if s[1] * pp <= model.layers])) if pp > 1 else ("1f1b", 1)
    return Layout(
        dp=dp,
        pp=pp,
        tp=tp,
        sp=draw(st.booleans()) if tp > 1 else False,
        schedule=schedule,
        vpp=vpp,
        zero=draw(st.integers(0, 3)),
        micro_batch=draw(st.integers(2, 4)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )


def step_s(model: ModelSpec, work: Workload, on: ClusterSpec, layout: Layout) -> float:
    return price(model, work, on, layout).step_s


def found(model: ModelSpec, work: Workload, on: ClusterSpec) -> Plan | None:
    try:
        return plan(model, work, on, None)
    except PlacementError:
        return None


def best(model: ModelSpec, work: Workload, on: ClusterSpec) -> Plan:
    answer = found(model, work, on)
    assume(answer is not None)
    assert answer is not None
    return answer


def with_link(cluster: ClusterSpec, distance: str, bandwidth: float = 1.0, latency: float = 1.0) -> ClusterSpec:
    link: Link = getattr(cluster.links, distance)
    return replace(cluster, links=replace(cluster.links, **{distance: Link(link.gbytes_s * bandwidth, link.latency_us * latency)}))


def with_memory(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    return replace(cluster, nodes=tuple(replace(n, memory_bytes=round(n.memory_bytes * factor)) for n in cluster.nodes))


@contextmanager
def as_kind(kind: DeviceKind) -> Iterator[None]:
    """Every device priced as another one."""
    with patch("rayplane.plan.step.profile.slowest", return_value=kind):
        yield


distances = st.sampled_from(["island", "node", "fabric"])
factors = st.sampled_from([1.01, 1.5, 2.0, 10.0, 1000.0])


@settings(max_examples=150, deadline=None)
@given(st.data(), models, works, clusters(), distances, factors)
def test_a_better_link_never_slows_a_layout(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec, distance: str, factor: float
) -> None:
    layout = data.draw(layouts(model, work, on.num_devices))
    before_s = step_s(model, work, on, layout)
    assert step_s(model, work, with_link(on, distance, bandwidth=factor), layout) <= before_s * (1 + EPS)
    assert step_s(model, work, with_link(on, distance, latency=1 / factor), layout) <= before_s * (1 + EPS)


@settings(max_examples=10, deadline=None)
@given(small_models, works, clusters(), distances, factors)
def test_a_better_link_never_slows_the_best_plan(
    model: ModelSpec, work: Workload, on: ClusterSpec, distance: str, factor: float
) -> None:
    before_s = best(model, work, on).estimate.step_s
    better = with_link(on, distance, bandwidth=factor, latency=1 / factor)
    assert best(model, work, better).estimate.step_s <= before_s * (1 + 1e-6)


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters(), factors)
def test_more_memory_never_refuses_a_layout_nor_changes_its_time(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec, factor: float
) -> None:
    layout = data.draw(layouts(model, work, on.num_devices))
    on = with_memory(on, data.draw(st.sampled_from([0.02, 0.1, 0.3, 1.0])))
    verdicts = ("fits", "tight", "does not fit")
    before, after = (price(model, work, cluster, layout) for cluster in (on, with_memory(on, factor)))
    assert verdicts.index(after.verdict) <= verdicts.index(before.verdict)
    assert after.step_s == before.step_s


@settings(max_examples=10, deadline=None)
@given(small_models, works, clusters(), st.sampled_from([0.05, 0.1, 0.3]), factors)
def test_more_memory_never_loses_the_plan(model: ModelSpec, work: Workload, on: ClusterSpec, share: float, factor: float) -> None:
    on = with_memory(on, share)
    before = best(model, work, on)
    after = found(model, work, with_memory(on, factor))
    assert after is not None
    if before.estimate.verdict == "fits":
        assert after.estimate.step_s <= before.estimate.step_s * (1 + 1e-6)


@settings(max_examples=150, deadline=None)
@given(st.data(), models, works, clusters(), factors, st.sampled_from(["hbm_gbytes_s", "peak_flops", "launch_us", "gemm_t0_us"]))
def test_a_faster_device_never_slows(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec, factor: float, figure: str
) -> None:
    layout, kind = data.draw(layouts(model, work, on.num_devices)), device(on.nodes[0].kind)
    value = getattr(kind, figure)
    better = {k: v * factor for k, v in value.items()} if figure == "peak_flops" else value / factor
    if figure == "hbm_gbytes_s":
        better = value * factor
    before_s = step_s(model, work, on, layout)
    # Where launches bind, shorter kernels hide less of a collective, though the device idles between them: up to a hundredth.
    with as_kind(replace(kind, **{figure: better})):
        assert step_s(model, work, on, layout) <= before_s * 1.01


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters())
def test_time_is_linear_in_layers_without_a_pipe(data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec) -> None:
    layout = replace(data.draw(layouts(model, work, on.num_devices)), pp=1, schedule="1f1b", vpp=1)
    one, two, three = (step_s(replace(model, layers=n * model.layers), work, on, layout) for n in (1, 2, 3))
    assert one < two < three
    # Over dp a part of the layers' reductions hides behind other layers, so there it is no straight line.
    if layout.dp == 1:
        assert three - two == pytest.approx(two - one, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters())
def test_more_layers_more_tokens_and_more_samples_take_longer(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec
) -> None:
    layout = data.draw(layouts(model, work, on.num_devices))
    before_s = step_s(model, work, on, layout)
    assert step_s(replace(model, layers=model.layers + layout.num_chunks), work, on, layout) > before_s
    # Where launches bind, more tokens hardly lengthen compute while its kernels hide more of what replicas tell each other.
    assert step_s(model, replace(work, seq_len=2 * work.seq_len), on, layout) > 0.9 * before_s
    assert step_s(model, replace(work, global_batch=2 * work.global_batch), on, layout) > before_s


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters())
def test_twice_the_batch_takes_about_twice_as_long(data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec) -> None:
    layout = data.draw(layouts(model, work, on.num_devices))
    whole = replace(work, global_batch=8 * layout.dp * layout.micro_batch * layout.pp)
    ratio = step_s(model, replace(whole, global_batch=2 * whole.global_batch), on, layout) / step_s(model, whole, on, layout)
    # What a step does once (reductions, optimizer, filling the pipe) does not double.
    assert 1.0 < ratio <= 2.0 + EPS
    alone = Layout(micro_batch=layout.micro_batch)
    once_s = step_s(model, replace(whole, global_batch=2 * whole.global_batch), on, alone)
    per_step = price(model, whole, on, alone).time_s["optimizer"]
    assert once_s - per_step == pytest.approx(2 * (step_s(model, whole, on, alone) - per_step))


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters(), st.sampled_from([0.1, 0.5, 2.0, 1000.0]))
def test_a_world_in_which_all_is_faster_is_the_same_world(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec, factor: float
) -> None:
    layout, kind = data.draw(layouts(model, work, on.num_devices)), device(on.nodes[0].kind)
    quick = replace(
        kind,
        hbm_gbytes_s=kind.hbm_gbytes_s * factor,
        peak_flops={precision: flops * factor for precision, flops in kind.peak_flops.items()},
        **{name: getattr(kind, name) * factor for name in ("host_copy_gbytes_s", "host_gbytes_s")},
        **{name: getattr(kind, name) / factor for name in ("gemm_t0_us", "launch_us", "ring_step_us")},
    )
    slow = (on.links.island, on.links.node, on.links.fabric)
    links = Links(*(Link(link.gbytes_s * factor, link.latency_us / factor) for link in slow))
    before = price(model, work, on, layout)
    with as_kind(quick):
        after = price(model, work, replace(on, links=links), layout)
    assert after.step_s * factor == pytest.approx(before.step_s, rel=1e-6)
    assert {t: s * factor for t, s in after.time_s.items()} == pytest.approx(before.time_s, rel=1e-6, abs=1e-12 * factor)
    assert (after.memory, after.verdict) == (before.memory, before.verdict)
    assert after.mfu == pytest.approx(before.mfu, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.data(), models, works, clusters())
def test_terms_sum_to_the_step_and_memory_terms_to_the_memory(
    data: st.DataObject, model: ModelSpec, work: Workload, on: ClusterSpec
) -> None:
    found = price(model, work, on, data.draw(layouts(model, work, on.num_devices)))
    assert sum(found.time_s.values()) == pytest.approx(found.step_s)
    assert sum(found.memory.values()) == found.memory_bytes
    assert 0 < found.mfu < 1
    assert 0 <= found.bubble < 1
    assert found.tokens_s * found.step_s == pytest.approx(work.global_batch * work.seq_len)


@settings(max_examples=12, deadline=None)
@given(small_models, works, kinds, st.integers(1, 5), st.integers(1, 2), st.sampled_from([1.0, 0.05]))
def test_one_more_device_or_node_never_makes_the_plan_worse(
    model: ModelSpec, work: Workload, kind: str, devices: int, count: int, fabric: float
) -> None:
    def on(devices: int, count: int) -> ClusterSpec:
        cluster = described(ClusterSection(nodes=[NodeSection(device=kind, devices=devices, count=count)]))
        return with_link(cluster, "fabric", bandwidth=fabric)

    before = best(model, work, on(devices, count))
    for more in (on(devices + 1, count), on(devices, count + 1)):
        after = best(model, work, more)
        mended = before.estimate.verdict == "tight" and after.estimate.verdict == "fits"
        slower = after.estimate.step_s > before.estimate.step_s * (1 + 1e-6)
        assert mended or not slower, f"{more.num_devices} devices: {before.layout} became {after.layout}"


@settings(max_examples=6, deadline=None)
@given(st.data(), small_models, works, st.lists(st.tuples(kinds, st.integers(1, 3), st.sampled_from("xy")), min_size=2, max_size=3))
def test_a_plan_does_not_depend_on_the_order_of_nodes(
    data: st.DataObject, model: ModelSpec, work: Workload, nodes: list[tuple[str, int, str]]
) -> None:
    sections = [NodeSection(device=k, devices=d, island=i, name=f"n{n}") for n, (k, d, i) in enumerate(nodes)]
    first, second = (described(ClusterSection(nodes=order)) for order in (sections, data.draw(st.permutations(sections))))
    one, other = found(model, work, first), found(model, work, second)
    assert (one is None) == (other is None)
    if one and other:
        assert (one.layout, one.estimate) == (other.layout, other.estimate)
        assert [c.layout for c in one.runners_up] == [c.layout for c in other.runners_up]
        assert one == plan(model, work, first, None)
