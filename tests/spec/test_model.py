"""A model as numbers, from presets, Hugging Face configs and GGUF headers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.errors import SpecError
from rayplane.spec.gguf_config import from_gguf_header
from rayplane.spec.hf_config import from_hf_config
from rayplane.spec.hf_export import hf_family, to_hf_config
from rayplane.spec.model import ModelSpec, Rope, check_model
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model, preset_names

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": 49152,
}

SMALL = ModelSpec(layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, mlp=16, vocab=32)


def test_a_llama_config_gives_its_numbers() -> None:
    spec = from_hf_config(LLAMA, "mini")
    assert spec == ModelSpec(2, 64, 4, 2, 16, 128, 512, 1024, True, 1e-5, Rope(500000.0), dtype="bf16", name="mini")


def test_what_a_config_leaves_out_has_the_familys_defaults() -> None:
    config = {k: LLAMA[k] for k in LLAMA if k not in ("num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings")}
    spec = from_hf_config(config, "mini")
    assert (spec.kv_heads, spec.norm_eps, spec.rope.theta, spec.tied) == (4, 1e-6, 10000.0, False)


def test_qwen2_has_biases_and_qwen3_norms_of_q_and_k() -> None:
    qwen2, qwen3 = (from_hf_config(LLAMA | {"model_type": m}, m) for m in ("qwen2", "qwen3"))
    assert (qwen2.qkv_bias, qwen2.qk_norm) == (True, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm) == (False, True)


def test_a_gpt2_config_gives_its_numbers() -> None:
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    assert from_hf_config(config, "gpt2") == load_model(ModelSection(preset="gpt2"))


def test_windows_are_read_where_every_layer_has_one() -> None:
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 512}
    assert from_hf_config(LLAMA | {"model_type": "mistral"}, "m").window == 4096, "what transformers takes when it is left out"
    assert from_hf_config(LLAMA | {"model_type": "mistral", "sliding_window": None}, "m").window == 0
    assert from_hf_config(qwen | {"use_sliding_window": False}, "m").window == 0
    assert from_hf_config(qwen | {"use_sliding_window": True, "max_window_layers": 0}, "m").window == 512
    assert from_hf_config(qwen | {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, "m").window == 0


def test_biases_are_read() -> None:
    spec = from_hf_config(LLAMA | {"attention_bias": True, "mlp_bias": True}, "mini")
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, True, True)


@pytest.mark.parametrize("name", preset_names())
def test_an_exported_config_reads_back_as_the_same_model(name: str) -> None:
    spec = load_model(ModelSection(preset=name))
    assert from_hf_config(to_hf_config(spec, "float32"), name) == spec


def test_a_mixture_that_no_published_model_has_cannot_be_exported() -> None:
    with pytest.raises(SpecError, match="no Hugging Face model has layernorm, rope, swiglu"):
        hf_family(replace(SMALL, norm="layernorm"))
    with pytest.raises(SpecError, match="qk_norm True, window 0, 4 heads in 8 together; there are gpt2, llama"):
        hf_family(replace(SMALL, qk_norm=True, qkv_bias=True))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_rope_scaling_is_read(key: str) -> None:
    assert from_hf_config(LLAMA | {key: LLAMA3_SCALING}, "mini").rope == Rope(500000.0, 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "phi3"}, "model_type 'phi3' is not supported; supported: gpt2, llama, mistral, qwen2, qwen3"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
            "layers with a sliding window beside layers without",
        ),
        ({"model_type": "gpt2", "activation_function": "relu"}, "activation_function 'relu' is not supported; supported: gelu_new"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "attention scaled other than by the root"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "cross-attention is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope scaling 'yarn' of mini is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling of mini lacks low_freq_factor"),
        ({"hidden_size": None}, "mini lacks hidden_size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers of mini is 'two'"),
        ({"num_attention_heads": 0}, "num_attention_heads of mini is 0"),
    ],
)
def test_a_config_that_cannot_be_computed_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as e:
        from_hf_config(LLAMA | change, "mini")
    assert message in str(e.value)
    assert e.value.problems[0].field == "model.path"


def test_a_gguf_header_gives_its_numbers() -> None:
    spec = from_gguf_header(GGUF, frozenset({"token_embd.weight"}), "smol")
    assert spec == ModelSpec(30, 576, 9, 3, 64, 1536, 49152, 8192, True, 1e-5, Rope(100000.0), name="smol")


def test_a_gguf_file_shows_head_biases_and_norms_by_its_tensors() -> None:
    names = {"output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"}
    spec = from_gguf_header(GGUF, frozenset(names), "smol")
    assert (spec.tied, spec.qkv_bias, spec.qk_norm) == (False, True, True)


def test_a_gguf_header_of_gpt2_gives_its_numbers() -> None:
    fields = {k.replace("llama.", "gpt2."): v for k, v in GGUF.items()} | {
        "general.architecture": "gpt2",
        "gpt2.attention.head_count_kv": 9,
    }
    names = {"blk.0.attn_qkv.bias", "blk.0.attn_output.bias", "blk.0.ffn_down.bias"}
    spec = from_gguf_header(fields | {"gpt2.attention.layer_norm_epsilon": 1e-6}, frozenset(names), "gpt2")
    assert (spec.norm, spec.positions, spec.act, spec.norm_eps) == ("layernorm", "learned", "gelu", 1e-6)
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.tied) == (True, True, True, True)


def test_a_gguf_vocabulary_without_a_size_is_counted() -> None:
    fields = {k: v for k, v in GGUF.items() if k != "llama.vocab_size"}
    assert from_gguf_header(fields | {"tokenizer.ggml.tokens": ("a", "b", "c")}, frozenset(), "smol").vocab == 3
    with pytest.raises(SpecError, match=r"smol lacks llama\.vocab_size"):
        from_gguf_header(fields, frozenset(), "smol")


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        ({"general.architecture": "bert"}, set(), "GGUF architecture 'bert' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, set(), "rope scaling 'yarn' is not supported"),
        ({"llama.expert_count": 8}, set(), "mixtures of experts are not supported"),
        ({"llama.attention.head_count_kv": (3, 3)}, set(), "head_count_kv of smol is (3, 3)"),
        ({}, {"rope_freqs.weight"}, "its own rope frequencies"),
    ],
)
def test_a_gguf_file_that_cannot_be_computed_says_why(change: dict[str, Any], tensors: set[str], message: str) -> None:
    with pytest.raises(SpecError) as e:
        from_gguf_header(GGUF | change, frozenset(tensors), "smol")
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (ModelSpec(2, 8, 4, 3, 2, 16, 32), "model.kv_heads"),
        (ModelSpec(2, 8, 4, 2, 3, 16, 32), "model.head_dim"),
        (ModelSpec(0, 8, 4, 2, 2, 16, 32), "model.layers"),
        (ModelSpec(2, 8, 4, 2, 2, 16, 32, rope=Rope(factor=8.0, low_freq_factor=4.0)), "model.rope.low_freq_factor"),
    ],
)
def test_impossible_numbers_are_named(spec: ModelSpec, field: str) -> None:
    assert [p.field for p in check_model(spec)] == [field]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_model(name: str) -> None:
    assert check_model(load_model(ModelSection(preset=name))) == []


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("qwen2-7b", 7_615_616_512),
        ("mistral-7b", 7_241_732_096),
        ("gpt2", 124_439_808),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, params: int) -> None:
    assert load_model(ModelSection(preset=name)).num_params == params


def test_tensors_are_in_model_order_and_a_tied_head_is_none() -> None:
    names = [t.name for t in SMALL.tensors()]
    assert names[0] == "embed"
    assert names[-2:] == ["norm", "head"]
    layers = [t.layer for t in SMALL.tensors()]
    assert layers == sorted(layers)
    tied = ModelSpec(layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, mlp=16, vocab=32, tied=True)
    assert [t.name for t in tied.tensors()] == names[:-1]


def test_only_matrices_decay() -> None:
    spec = ModelSpec(layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2, mlp=16, vocab=32, qkv_bias=True, qk_norm=True)
    assert {t.name.split(".")[-1] for t in spec.tensors() if not t.decay} == {
        "attn_norm",
        "q_bias",
        "k_bias",
        "v_bias",
        "q_norm",
        "k_norm",
        "mlp_norm",
        "norm",
    }


@given(st.integers(1, 4096))
def test_flops_grow_by_the_attention_of_each_token_to_half_the_sequence(seq_len: int) -> None:
    matrices = sum(t.numel for t in SMALL.tensors() if len(t.dims) > 1 and t.name != "embed")
    attention = 12 * SMALL.layers * SMALL.heads * SMALL.head_dim * seq_len / 2
    assert SMALL.flops_per_token(seq_len) == 6 * matrices + attention


def test_a_window_bounds_the_attention_that_is_counted() -> None:
    brute = sum(min(i + 1, 3) - 0.5 * (i < 3) for i in range(12)) / 12
    assert replace(SMALL, window=3).mean_keys(12) == pytest.approx(brute)
    assert replace(SMALL, window=30).mean_keys(12) == SMALL.mean_keys(12) == 6


@pytest.mark.parametrize("value", ["x", None, float("nan"), -1.0])
def test_a_description_with_no_number_for_a_number_is_refused(value):
    assert [p.field for p in check_model(replace(load_model(ModelSection(preset="tiny-llama")), norm_eps=value))] == ["model.norm_eps"]


def test_more_layers_than_anyone_trains_are_refused():
    assert [p.field for p in check_model(replace(load_model(ModelSection(preset="tiny-llama")), layers=10**12))] == ["model.layers"]
