"""A fit finds the device that was measured: its figures, and with them its steps."""

from dataclasses import replace

import pytest

from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.measured_links import curves
from rayplane.plan.machine.ratios import Ratios, points, seconds_at
from rayplane.plan.step.fit import fitted
from rayplane.plan.step.profile import with_profile
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Workload
from tests.plan.profiles import MODEL, measured

CLUSTER = homogeneous({"here": 2}, "cpu", 10**10, {})
TRUTH = replace(
    device("cpu"),
    peak_flops={"fp32": 250e9, "bf16": 250e9},
    gemm_efficiency=0.7,
    attention={"flash": ((128, 0.1), (256, 0.15), (1024, 0.25))},
    hbm_gbytes_s=11.0,
    launch_us=900.0,
    jitter=0.08,
    ratios=Ratios(products=(0.8, 0.8, 1.4), attention_backward=0.7, head=1.2, optimizer=0.3, cp_jitter=0.03),
)
WORKLOAD = Workload(16, 256, "fp32")


@pytest.fixture(scope="module")
def profile():
    truth = replace(TRUTH, curves=curves(measured(CLUSTER, TRUTH)))
    return measured(CLUSTER, truth)


def test_figures_are_found(profile):
    found = fitted("cpu", profile, "fp32", 2)
    assert found.gemm_efficiency * found.peak_flops["fp32"] == pytest.approx(0.7 * 250e9, rel=0.01)
    assert found.ratios.products == pytest.approx(TRUTH.ratios.products, rel=0.01)
    assert found.ratios.attention_backward == pytest.approx(0.7, rel=0.01)
    assert found.ratios.head == pytest.approx(1.2, rel=0.02)
    assert found.hbm_gbytes_s == pytest.approx(11.0, rel=0.05)
    assert found.launch_us == pytest.approx(900, rel=0.05)
    assert found.jitter == pytest.approx(0.08, abs=0.005)
    assert found.ratios.cp_jitter == pytest.approx(0.03, abs=0.005)


def test_a_device_that_is_alone_is_as_fast_as_it_was_alone(profile):
    alone, together = (fitted("cpu", profile, "fp32", busy) for busy in (1, 2))
    assert alone.gemm_efficiency == pytest.approx(1.1 * together.gemm_efficiency)
    assert alone.hbm_gbytes_s == together.hbm_gbytes_s


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, micro_batch=4),
        Layout(pp=2, micro_batch=2),
        Layout(pp=2, micro_batch=2, schedule="zb-h1"),
        Layout(pp=2, micro_batch=2, schedule="zbv", vpp=2),
        Layout(dp=2, micro_batch=4),
        Layout(cp=2, micro_batch=4),
    ],
    ids=str,
)
def test_steps_are_those_of_the_device_that_was_measured(profile, layout, monkeypatch):
    found = _step_s(layout, with_profile(CLUSTER, profile))
    truth = replace(TRUTH, curves=curves(profile))
    monkeypatch.setattr("rayplane.plan.step.site.device_of", lambda cluster, precision: truth)
    assert found == pytest.approx(_step_s(layout, with_profile(CLUSTER, profile)), rel=0.02)


def test_what_was_not_measured_is_the_catalogs(profile):
    nothing = profile.model_copy(update=dict.fromkeys(("products", "attention", "layers", "heads", "memory", "optimizer"), ()))
    nothing = nothing.model_copy(update={"collectives": (), "messages": ()})
    assert fitted("cpu", nothing, "fp32", 2) == device("cpu")
    assert fitted("cpu", profile, "bf16", 2).gemm_efficiency == device("cpu").gemm_efficiency


def test_curves_pass_through_what_was_measured_and_never_fall():
    curve = points([(1000, 2.0), (10, 1.0), (100, 0.5), (2000, 4.0)])
    assert [seconds_at(curve, n) for n in (1, 10, 100, 1000, 2000, 3000)] == pytest.approx([1, 1, 1, 2, 4, 6])
    assert seconds_at(curve, 550) == pytest.approx(1.5)
    assert seconds_at(points([(10, 1.0)]), 99) == 1.0


def _step_s(layout, cluster):
    pricer = Pricer(MODEL, WORKLOAD, cluster)
    return pricer.draft(pricer.outline(layout)).step_s(pricer.orders)
