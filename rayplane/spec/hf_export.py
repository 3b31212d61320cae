"""A model as a Hugging Face `config.json`: the way back from `hf_config`.

gpt2      layernorm, learned positions, gelu, every bias, one KV head per head, heads * head_dim = hidden
qwen3     norms of q and k            qwen2     biases on q, k and v alone
mistral   no biases, and a window or    llama     the rest
          heads that do not divide hidden, which transformers refuses of llama
"""

from __future__ import annotations

from typing import Any

from rayplane.errors import Problem, SpecError
from rayplane.spec.model import ModelSpec, Rope

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Class of transformers by `model_type`."""


def hf_family(spec: ModelSpec) -> str:
    """The `model_type` that computes what this model does; SpecError when there is none."""
    kind = (spec.norm, spec.positions, spec.act)
    whole = spec.kv_heads == spec.heads and spec.heads * spec.head_dim == spec.hidden and not spec.qk_norm and not spec.window
    if kind == ("layernorm", "learned", "gelu") and whole and spec.qkv_bias and spec.o_bias and spec.mlp_bias:
        return "gpt2"
    if kind != ("rmsnorm", "rope", "swiglu"):
        raise _none(spec)
    biases = (spec.qkv_bias, spec.o_bias, spec.mlp_bias)
    if spec.qk_norm and spec.qkv_bias == spec.o_bias and not spec.mlp_bias:
        return "qwen3"
    if not spec.qk_norm and biases == (True, False, False):
        return "qwen2"
    divides = spec.hidden % spec.heads == 0
    if not spec.qk_norm and not any(biases) and (spec.window or not divides):
        return "mistral"
    if not spec.qk_norm and not spec.window and divides and spec.qkv_bias == spec.o_bias:
        return "llama"
    raise _none(spec)


def to_hf_config(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """The content of `config.json` for weights of `dtype` (torch's name for it)."""
    family = hf_family(spec)
    common = {
        "model_type": family,
        "architectures": [CLASSES[family]],
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied,
        "initializer_range": spec.init_std,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return common | (_gpt2(spec) if family == "gpt2" else _llama(spec, family))


def _gpt2(spec: ModelSpec) -> dict[str, Any]:
    return {
        "n_layer": spec.layers,
        "n_embd": spec.hidden,
        "n_head": spec.heads,
        "n_inner": spec.mlp,
        "n_positions": spec.max_seq,
        "layer_norm_epsilon": spec.norm_eps,
        "activation_function": "gelu_new",
    }


def _llama(spec: ModelSpec, family: str) -> dict[str, Any]:
    config = {
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.mlp,
        "max_position_embeddings": spec.max_seq,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "rope_scaling": _scaling(spec.rope),
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = spec.qkv_bias
    if family == "llama":
        config["mlp_bias"] = spec.mlp_bias
    if family == "mistral":
        config["sliding_window"] = spec.window or None
    if family in ("qwen2", "qwen3"):
        config |= {"use_sliding_window": spec.window > 0, "sliding_window": spec.window or None, "max_window_layers": 0}
    return config


def _scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.factor == 1.0:
        return None
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_seq,
    }


def _none(spec: ModelSpec) -> SpecError:
    numbers = f"{spec.norm}, {spec.positions}, {spec.act}, qkv_bias {spec.qkv_bias}, o_bias {spec.o_bias}, mlp_bias {spec.mlp_bias}"
    kinds = "; there are " + ", ".join(CLASSES)
    shape = f"qk_norm {spec.qk_norm}, window {spec.window}, {spec.heads} heads in {spec.hidden}"
    return SpecError(Problem(f"{spec.name}: no Hugging Face model has {numbers}, {shape} together{kinds}", "model"))
