"""Bytes from the shapes against what ledgers counted (`benchmarks/results/comm_bytes.json`)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.step.train import Pricer
from rayplane.plan.why.traffic import Passage, over_cp, over_pp, over_tp
from rayplane.plan.why.weight_traffic import over_dp
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

MEASURED = {
    (row["what"], row["shape"]): row["measured"]
    for row in json.loads((Path(__file__).parents[2] / "benchmarks/results/comm_bytes.json").read_text())["rows"]
}
NARROW = ModelSpec(layers=4, hidden=32, heads=8, kv_heads=4, head_dim=8, mlp=48, vocab=64)
GROUPED = ModelSpec(layers=3, hidden=40, heads=8, kv_heads=2, head_dim=10, mlp=72, vocab=100)
ODD = ModelSpec(layers=4, hidden=24, heads=9, kv_heads=3, head_dim=8, mlp=50, vocab=61)
TIED = replace(NARROW, tied=True)
NAMES = {NARROW: "8 heads, 4 KV", GROUPED: "8 heads, 2 KV", ODD: "9 heads, 3 KV", TIED: "tied"}
LINE = 16
"""Weights are padded to whole lines of so many elements."""

ACTIVATIONS = [
    ("TP", NARROW, Layout(tp=2), over_tp, 4, 12),
    ("TP", NARROW, Layout(tp=4, micro_batch=2), over_tp, 4, 7),
    ("TP, a KV head on two ranks", ODD, Layout(tp=2, micro_batch=3), over_tp, 4, 12),
    ("TP, layers computed again", NARROW, Layout(tp=2, recompute="full"), over_tp, 4, 12),
    ("SP", NARROW, Layout(tp=2, sp=True), over_tp, 4, 12),
    ("SP, uneven", NARROW, Layout(tp=4, sp=True, micro_batch=3), over_tp, 4, 7),
    ("SP, a KV head on two ranks", ODD, Layout(tp=2, sp=True), over_tp, 4, 12),
    ("CP ring", NARROW, Layout(cp=2), over_cp, 4, 12),
    ("CP ring", GROUPED, Layout(cp=4, micro_batch=2), over_cp, 4, 16),
    ("CP ring, uneven", ODD, Layout(cp=3), over_cp, 4, 13),
    ("CP gather", NARROW, Layout(cp=2, cp_method="gather"), over_cp, 4, 12),
    ("CP gather", GROUPED, Layout(cp=4, cp_method="gather", micro_batch=2), over_cp, 4, 16),
    ("CP gather, uneven", ODD, Layout(cp=3, cp_method="gather"), over_cp, 4, 13),
    ("PP gpipe", NARROW, Layout(pp=2, schedule="gpipe"), over_pp, 4, 12),
    ("PP 1f1b", NARROW, Layout(pp=2), over_pp, 4, 12),
    ("PP zb-h1", NARROW, Layout(pp=2, schedule="zb-h1"), over_pp, 4, 12),
    ("PP interleaved", NARROW, Layout(pp=2, vpp=2, schedule="interleaved"), over_pp, 4, 12),
    ("PP zbv", NARROW, Layout(pp=2, vpp=2, schedule="zbv"), over_pp, 4, 12),
    ("PP, uneven microbatches", ODD, Layout(pp=4, micro_batch=3), over_pp, 4, 12),
]
WEIGHTS = [
    ("DP", NARROW, Layout(dp=2), 4),
    ("DP and CP", GROUPED, Layout(dp=2, cp=2, micro_batch=2), 4),
    ("ZeRO-1", NARROW, Layout(dp=4, zero=1), 4),
    ("ZeRO-2", NARROW, Layout(dp=2, zero=2), 4),
    ("ZeRO-2", GROUPED, Layout(dp=3, zero=2, micro_batch=2), 12),
    ("ZeRO-3", NARROW, Layout(dp=2, zero=3), 4),
    ("ZeRO-3, layers computed again", GROUPED, Layout(dp=3, zero=3, recompute="full"), 6),
    ("ZeRO-3, tied embedding", TIED, Layout(dp=2, zero=3), 4),
]
SHARED = [
    ("ZeRO-1 in islands of 2, within", 1, 8),
    ("ZeRO-2 in islands of 2, within", 2, 8),
    ("ZeRO-3 in islands of 2, within", 3, 8),
    ("ZeRO-1 in islands of 2, across", 1, 4),
]


def sent(model: ModelSpec, layout: Layout, messages, batch: int, seq_len: int, keep=lambda message: True) -> float:
    """Bytes that all ranks send in a step."""
    layout = replace(layout, boundaries=even_boundaries(model.layers, layout.num_chunks))
    cluster = homogeneous({f"n{i}": 1 for i in range(layout.size)}, "cpu", 10**10, {})
    pricer = Pricer(model, Workload(batch, seq_len, "fp32"), cluster)
    outline, (work, _) = pricer.outline(layout), pricer.microbatch(layout)
    stages = [Passage(work, layout, pricer.topology, outline.rounds, stage) for stage in range(layout.pp)]
    ranks = layout.size // layout.pp
    return ranks * sum(m.sent_bytes for of in stages for m in messages(of) if keep(m))


def shape(model: ModelSpec, layout: Layout, batch: int, seq_len: int) -> str:
    return f"{layout}, {NAMES[model]}, {batch} x {seq_len}"


@pytest.mark.parametrize(("what", "model", "layout", "messages", "batch", "seq_len"), ACTIVATIONS)
def test_activations_are_the_measured_bytes(what, model, layout, messages, batch, seq_len):
    assert round(sent(model, layout, messages, batch, seq_len), 6) == MEASURED[what, shape(model, layout, batch, seq_len)]


def test_a_tied_embedding_is_the_measured_bytes():
    own = sent(TIED, Layout(pp=2), over_pp, 4, 12, lambda m: m.op == "all-reduce")
    assert own == MEASURED["PP, tied embedding", shape(TIED, Layout(pp=2), 4, 12)]


@pytest.mark.parametrize(("what", "model", "layout", "batch"), WEIGHTS)
def test_weights_and_gradients_are_the_measured_bytes_but_for_padding(what, model, layout, batch):
    bytes_sent = sent(model, layout, over_dp, batch, 12)
    measured = MEASURED[what, shape(model, layout, batch, 12)]
    lines = all(t.numel % LINE == 0 for t in model.tensors())
    print(f"{what}: {bytes_sent:,.0f} of {measured:,}")
    assert bytes_sent == pytest.approx(measured, rel=1e-9 if lines else 0.005)
    assert lines or bytes_sent < measured, "padding only adds"


@pytest.mark.parametrize(("what", "zero", "batch"), SHARED)
def test_islands_share_and_copy_the_measured_bytes(what, zero, batch):
    layout = Layout(dp=4, zero=zero, shard=2)
    across = what.endswith("across")
    bytes_sent = sent(NARROW, layout, over_dp, batch, 12, lambda m: ("across" in m.what) == across)
    assert bytes_sent == pytest.approx(MEASURED[what, shape(NARROW, layout, batch, 12)], rel=1e-9)


def test_every_arithmetic_is_worked_out():
    """What is printed multiplies out to what is sent."""
    pricer = Pricer(NARROW, Workload(4, 12, "fp32"), homogeneous({"a": 2}, "cpu", 10**10, {}))
    layout = Layout(tp=2, boundaries=(4,))
    of = Passage(pricer.microbatch(layout)[0], layout, pricer.topology, 4.0, 0)
    outputs = next(over_tp(of)).traffic()
    assert outputs.what == "all-reduce of a layer's outputs, forward"
    assert outputs.arithmetic == "1 x 12 tokens x 32 x 4 B = 1.54 kB; p = 2: 2N(p-1)/p = 1.54 kB a call; 32 calls: 49.2 kB"
    assert outputs.sent_bytes == 32 * 1536 == outputs.calls * outputs.message_bytes
