"""Learned positions, layer norms, biases and windows are cut like the rest: every layout trains as one device does."""

import pytest

from rayplane.errors import SpecError
from rayplane.spec.layout import Layout
from tests.parity.training import assert_equal, section, tiny, train

GPT2 = {"norm": "layernorm", "positions": "learned", "act": "gelu", "qkv_bias": True, "o_bias": True, "mlp_bias": True}
MODELS = {
    "gpt2": tiny(**GPT2, kv_heads=9, tied=True, max_seq=16),
    "gpt2-untied-grouped": tiny(**GPT2, max_seq=12),
    "window": tiny(window=5, o_bias=True, mlp_bias=True),
}
LAYOUTS = {
    "tp2": Layout(tp=2, micro_batch=2),
    "tp3-sp-uneven": Layout(tp=3, sp=True, micro_batch=3),
    "pp2-zb-h1": Layout(pp=2, micro_batch=1, schedule="zb-h1"),
    "pp2-zbv-tp2-sp": Layout(pp=2, vpp=2, tp=2, sp=True, micro_batch=2, schedule="zbv"),
    "dp2-zero1-recompute-full": Layout(dp=2, zero=1, micro_batch=2, recompute="full"),
    "tp2-sp-recompute-selective": Layout(tp=2, sp=True, micro_batch=2, recompute="selective"),
}
CUT_SEQUENCES = {
    "cp2-ring": Layout(cp=2, micro_batch=2),
    "cp2-tp2-sp-gather": Layout(cp=2, tp=2, sp=True, micro_batch=3, cp_method="gather"),
}


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Each model on one device, computed once."""
    runs = {}

    def get(name):
        if name not in runs:
            runs[name] = train(MODELS[name], Layout(micro_batch=8), section(tmp_path_factory.mktemp("serial")))
        return runs[name]

    return get


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_serial(layout, model, serial, tmp_path):
    assert_equal(train(MODELS[model], LAYOUTS[layout], section(tmp_path)), serial(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", CUT_SEQUENCES)
def test_learned_positions_and_windows_are_right_where_the_sequence_is_cut(layout, model, serial, tmp_path):
    assert_equal(train(MODELS[model], CUT_SEQUENCES[layout], section(tmp_path)), serial(model))


def test_more_tokens_than_learned_positions_are_refused(tmp_path):
    with pytest.raises(SpecError, match="12 is more than the 11 learned positions"):
        train(tiny(**GPT2, max_seq=11), Layout(), section(tmp_path))


def test_a_window_as_long_as_the_sequence_may_be_cut(tmp_path):
    folders = [tmp_path / name for name in ("window", "none")]
    for folder in folders:
        folder.mkdir()
    cut = train(tiny(window=12), Layout(cp=2, micro_batch=2), section(folders[0]))
    assert_equal(cut, train(tiny(), Layout(micro_batch=8), section(folders[1])))


def test_bf16_under_tp2_sp_follows_serial(tmp_path):
    runs = []
    for name, layout in (("serial", Layout(micro_batch=8)), ("cut", Layout(tp=2, sp=True, micro_batch=2))):
        (tmp_path / name).mkdir()
        runs.append(train(MODELS["gpt2-untied-grouped"], layout, section(tmp_path / name, precision="bf16")))
    for cut, whole in zip(runs[1].losses, runs[0].losses, strict=True):
        assert cut == pytest.approx(whole, rel=2e-3)
