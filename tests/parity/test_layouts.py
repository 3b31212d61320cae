"""Every way to cut a training step gives what one device gives: loss, gradient norm, held-out loss, weights and moments."""

import pytest

from rayplane.spec.layout import Layout

from .training import assert_equal, section, tiny, train

LAYOUTS = {
    "tp2": Layout(tp=2, micro_batch=2),
    "tp3": Layout(tp=3, micro_batch=2),
    "pp2-1f1b": Layout(pp=2, micro_batch=2),
    "pp2-gpipe": Layout(pp=2, micro_batch=2, schedule="gpipe"),
    "pp2-uneven-stages": Layout(pp=2, micro_batch=2, boundaries=(3, 1)),
    "pp3-embedding-alone": Layout(pp=3, micro_batch=2, boundaries=(0, 3, 1)),
    "pp3-head-alone": Layout(pp=3, micro_batch=2, boundaries=(2, 2, 0)),
    "pp2-uneven-microbatches": Layout(pp=2, micro_batch=3),
    "pp4": Layout(pp=4, micro_batch=2),
    "pp4-fewer-microbatches-than-stages": Layout(pp=4, micro_batch=4),
    "pp2-zb-h1": Layout(pp=2, micro_batch=1, schedule="zb-h1"),
    "pp4-zb-h1": Layout(pp=4, micro_batch=2, schedule="zb-h1"),
    "pp3-zb-h2": Layout(pp=3, micro_batch=1, schedule="zb-h2"),
    "pp2-interleaved": Layout(pp=2, vpp=2, micro_batch=2, schedule="interleaved"),
    "pp2-interleaved-uneven": Layout(pp=2, vpp=2, micro_batch=3, schedule="interleaved", boundaries=(1, 2, 0, 1)),
    "pp1-two-chunks": Layout(vpp=2, micro_batch=2, schedule="interleaved"),
    "pp2-zbv": Layout(pp=2, vpp=2, micro_batch=1, schedule="zbv"),
    "pp2-tp2-zbv": Layout(pp=2, vpp=2, tp=2, micro_batch=2, schedule="zbv"),
    "dp2-pp2-zb-h1": Layout(dp=2, pp=2, micro_batch=2, schedule="zb-h1"),
    "dp2-pp2-zbv": Layout(dp=2, pp=2, vpp=2, micro_batch=2, schedule="zbv"),
    "dp2-pp2-interleaved-uneven": Layout(dp=2, pp=2, vpp=2, micro_batch=3, schedule="interleaved"),
    "dp2-zero1": Layout(dp=2, zero=1, micro_batch=2),
    "dp3-zero1": Layout(dp=3, zero=1, micro_batch=2),
    "dp2-tp2-zero1": Layout(dp=2, tp=2, zero=1, micro_batch=2),
    "dp2-pp2-zero1-zbv": Layout(dp=2, pp=2, vpp=2, zero=1, micro_batch=2, schedule="zbv"),
    "dp2-pp2-zero1-zb-h1": Layout(dp=2, pp=2, zero=1, micro_batch=2, schedule="zb-h1"),
    "dp2-pp2-tp2-sp-zero1": Layout(dp=2, pp=2, tp=2, sp=True, zero=1, micro_batch=2),
    "recompute-full": Layout(micro_batch=2, recompute="full"),
    "recompute-selective": Layout(micro_batch=2, recompute="selective"),
    "pp2-tp2-sp-recompute-full": Layout(pp=2, tp=2, sp=True, micro_batch=2, recompute="full"),
    "pp2-tp2-recompute-selective-zb-h1": Layout(pp=2, tp=2, micro_batch=2, recompute="selective", schedule="zb-h1"),
    "dp2-pp2-recompute-full-zb-h1": Layout(dp=2, pp=2, micro_batch=2, recompute="full", schedule="zb-h1", zero=1),
    "cp2-ring": Layout(cp=2, micro_batch=2),
    "cp3-ring": Layout(cp=3, micro_batch=2),
    "cp2-gather": Layout(cp=2, micro_batch=2, cp_method="gather"),
    "cp3-gather": Layout(cp=3, micro_batch=2, cp_method="gather"),
    "dp2-zero2": Layout(dp=2, zero=2, micro_batch=2),
    "dp3-zero3-uneven-replicas": Layout(dp=3, zero=3, micro_batch=2),
    "dp2-tp2-sp-zero3": Layout(dp=2, tp=2, sp=True, zero=3, micro_batch=2),
    "dp2-cp2-zero3-recompute-full": Layout(dp=2, cp=2, zero=3, micro_batch=2, recompute="full"),
    "dp2-pp2-zero2-interleaved": Layout(dp=2, pp=2, vpp=2, zero=2, micro_batch=1, schedule="interleaved"),
    "dp2-pp2-zero3-1f1b": Layout(dp=2, pp=2, zero=3, micro_batch=1),
    "dp2-two-chunks-zero3": Layout(dp=2, vpp=2, zero=3, micro_batch=2, schedule="interleaved"),
    "pp2-zero3-alone": Layout(pp=2, zero=3, micro_batch=2),
    "dp2-zero3-shard1": Layout(dp=2, zero=3, shard=1, micro_batch=2),
    "dp4-zero1-shard2": Layout(dp=4, zero=1, shard=2, micro_batch=1),
    "dp4-zero2-shard2": Layout(dp=4, zero=2, shard=2, micro_batch=1),
    "dp2-cp2-zero3-shard2": Layout(dp=2, cp=2, zero=3, shard=2, micro_batch=1),
    "dp2-cp2-zero1": Layout(dp=2, cp=2, zero=1, micro_batch=2),
    "cp2-tp2-sp": Layout(cp=2, tp=2, sp=True, micro_batch=3),
    "pp2-cp2-zbv": Layout(pp=2, vpp=2, cp=2, micro_batch=2, schedule="zbv"),
    "pp2-cp2-recompute-full": Layout(pp=2, cp=2, micro_batch=2, recompute="full"),
    "pp2-cp2-tp2-gather": Layout(pp=2, cp=2, tp=2, micro_batch=2, cp_method="gather"),
    "tp2-sp": Layout(tp=2, sp=True, micro_batch=2),
    "tp3-sp-uneven": Layout(tp=3, sp=True, micro_batch=3),
    "pp2-tp2-sp": Layout(pp=2, tp=2, sp=True, micro_batch=3),
    "pp2-tp2-sp-zb-h1": Layout(pp=2, tp=2, sp=True, micro_batch=1, schedule="zb-h1"),
    "dp2-tp2-sp": Layout(dp=2, tp=2, sp=True, micro_batch=2),
    "dp2": Layout(dp=2, micro_batch=2),
    "dp3-uneven-replicas": Layout(dp=3, micro_batch=2),
    "dp2-tp2": Layout(dp=2, tp=2, micro_batch=2),
    "pp2-tp2": Layout(pp=2, tp=2, micro_batch=2),
    "dp2-pp2": Layout(dp=2, pp=2, micro_batch=2),
    "dp2-pp2-uneven-microbatches": Layout(dp=2, pp=2, micro_batch=3),
    "dp2-pp2-tp2": Layout(dp=2, pp=2, tp=2, micro_batch=2),
}
MODELS = {
    "tied": tiny(tied=True),
    "untied": tiny(tied=False),
    "qwen": tiny(tied=False, qkv_bias=True, qk_norm=True, heads=4, kv_heads=2),
    "qwen-tied-9-heads": tiny(tied=True, qkv_bias=True, qk_norm=True),
}
FEW = ("tp2", "tp3", "tp3-sp-uneven", "pp2-1f1b", "dp2-pp2-tp2", "dp2-pp2-tp2-sp-zero1")


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Each model on one device, computed once."""
    runs = {}

    def get(name):
        if name not in runs:
            runs[name] = train(MODELS[name], Layout(micro_batch=8), section(tmp_path_factory.mktemp("serial")))
        return runs[name]

    return get


# A tied embedding is another case only where its two ends are on different chunks, or are cut.
CASES = [(name, "untied") for name in LAYOUTS] + [(name, "tied") for name, x in LAYOUTS.items() if x.num_chunks > 1 or x.tp == 3]


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_layout_equals_serial(layout, model, serial, tmp_path):
    assert_equal(train(MODELS[model], LAYOUTS[layout], section(tmp_path)), serial(model))


@pytest.mark.parametrize("model", ["qwen", "qwen-tied-9-heads"])
@pytest.mark.parametrize("layout", FEW)
def test_biases_and_qk_norm_equal_serial(layout, model, serial, tmp_path):
    assert_equal(train(MODELS[model], LAYOUTS[layout], section(tmp_path)), serial(model))


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("zbv", 2)])
@pytest.mark.parametrize("zero", [2, 3])
def test_zero_with_a_split_backward_reduces_after_the_weights_half(zero, schedule, vpp, serial, tmp_path):
    """Peers get silently wrong gradients here (pytorch#144530, and FSDP2 under zero-bubble schedules)."""
    layout = Layout(dp=2, pp=2, vpp=vpp, schedule=schedule, zero=zero, micro_batch=1)
    for model in ("untied", "tied"):
        assert_equal(train(MODELS[model], layout, section(tmp_path)), serial(model))


@pytest.mark.parametrize("layout", ["dp2", "dp2-tp2", "dp2-pp2", "dp2-zero2", "dp2-pp2-zero3-1f1b"])
def test_many_buckets_and_slices_equal_serial(layout, serial, tmp_path, monkeypatch):
    """These models fit into one bucket of gradients and one slice of logits; here those hold a few weights, and a few tokens."""
    whole = serial("tied")
    monkeypatch.setattr("rayplane.train.flat.BUCKET_BYTES", 6000)
    monkeypatch.setattr("rayplane.model.loss.SLICE_ELEMENTS", 305)
    assert_equal(train(MODELS["tied"], LAYOUTS[layout], section(tmp_path)), whole)


@pytest.mark.parametrize("mlp", [9, 11])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_tp_ranks_hold_alike_stays_alike_to_the_bit(zero, mlp, tmp_path):
    """Norms and biases: a sum over replicas, and where AdamW's vectors end, must not depend on what a tp rank holds beside them."""
    spec = tiny(tied=False, mlp=mlp, heads=5, kv_heads=5, norm="layernorm", o_bias=True, mlp_bias=True)
    train(spec, Layout(dp=3, tp=2, zero=zero, micro_batch=3), section(tmp_path))


def test_clipping_bites_in_these_runs(serial):
    """Else the layouts above would agree on a clip that never happens."""
    assert min(serial("tied").norms + serial("untied").norms) > 0.5


def test_bf16_under_tp2_pp2_follows_serial(tmp_path):
    runs = []
    for name, layout in (("serial", Layout(micro_batch=8)), ("cut", Layout(pp=2, tp=2, micro_batch=2))):
        folder = tmp_path / name
        folder.mkdir()
        runs.append(train(MODELS["untied"], layout, section(folder, precision="bf16")))
    assert all(t.dtype.is_floating_point and t.itemsize == 4 for t in runs[0].tensors.values()), "masters and moments are fp32"
    for cut, whole in zip(runs[1].losses, runs[0].losses, strict=True):
        assert cut == pytest.approx(whole, rel=2e-3)
