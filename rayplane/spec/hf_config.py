"""The numbers of a Hugging Face `config.json`.

model_type                      read as
llama, mistral, qwen2, qwen3    the keys hidden_size, num_attention_heads, … of Llama's configuration, with each family's defaults
gpt2                            n_embd, n_head, …

`hf_export` is the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rayplane.errors import Problem, SpecError
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.whole import whole

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` that the block covers."""
QWEN2 = {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
DEFAULTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        "qwen2": QWEN2,
        "qwen3": QWEN2 | {"head_dim": 128},
    }
)
"""What transformers takes for a key that a family's config leaves out."""
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""What a config says of Llama 3's rope scaling."""
GELU_TANH = ("gelu_new", "gelu_pytorch_tanh")


def from_hf_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The numbers of a `config.json`; SpecError when the block cannot compute what it asks for."""
    family = str(config.get("model_type"))
    config = {**DEFAULTS.get(family, {}), **config}
    if reason := _unsupported(family, config):
        raise SpecError(Problem(f"{name}: {reason}", "model.path"))
    return _gpt2(config, name) if family == "gpt2" else _llama(config, name)


def _llama(config: Mapping[str, Any], name: str) -> ModelSpec:
    """Llama, Mistral, Qwen2 and Qwen3."""
    family = config["model_type"]
    heads, hidden = whole(config, "num_attention_heads", name), whole(config, "hidden_size", name)
    biased = family != "qwen2" and bool(config.get("attention_bias"))
    return ModelSpec(
        layers=whole(config, "num_hidden_layers", name),
        hidden=hidden,
        heads=heads,
        kv_heads=whole(config, "num_key_value_heads", name, heads),
        head_dim=whole(config, "head_dim", name, hidden // heads),
        mlp=whole(config, "intermediate_size", name),
        vocab=whole(config, "vocab_size", name),
        max_seq=whole(config, "max_position_embeddings", name, 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope=_rope(config, name),
        qkv_bias=biased or family == "qwen2",
        qk_norm=family == "qwen3",
        o_bias=biased,
        mlp_bias=bool(config.get("mlp_bias")),
        window=_windows(config).pop() or 0,
        init_std=config.get("initializer_range", 0.02),
        dtype=_dtype(config),
        name=name,
    )


def _gpt2(config: Mapping[str, Any], name: str) -> ModelSpec:
    heads, hidden = whole(config, "n_head", name), whole(config, "n_embd", name)
    return ModelSpec(
        layers=whole(config, "n_layer", name),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        mlp=whole(config, "n_inner", name, 4 * hidden),
        vocab=whole(config, "vocab_size", name),
        max_seq=whole(config, "n_positions", name, 1024),
        tied=bool(config.get("tie_word_embeddings", True)),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        norm="layernorm",
        positions="learned",
        act="gelu",
        o_bias=True,
        mlp_bias=True,
        init_std=config.get("initializer_range", 0.02),
        dtype=_dtype(config),
        name=name,
    )


def _unsupported(family: str, config: Mapping[str, Any]) -> str:
    """Why the block cannot compute what a config asks for; empty when it can."""
    if family not in FAMILIES:
        return f"model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}"
    if config.get("quantization_config"):
        return "quantized weights are not supported; use the model they were made from"
    return _gpt2_unsupported(config) if family == "gpt2" else _llama_unsupported(config)


def _gpt2_unsupported(config: Mapping[str, Any]) -> str:
    if (act := config.get("activation_function", "gelu_new")) not in GELU_TANH:
        return f"activation_function {act!r} is not supported; supported: {', '.join(GELU_TANH)}"
    if config.get("scale_attn_by_inverse_layer_idx") or not config.get("scale_attn_weights", True):
        return "attention scaled other than by the root of the head's width is not supported"
    return "cross-attention is not supported" if config.get("add_cross_attention") else ""


def _llama_unsupported(config: Mapping[str, Any]) -> str:
    if (act := config.get("hidden_act", "silu")) != "silu":
        return f"hidden_act {act!r} is not supported; supported: silu"
    if len(_windows(config)) > 1:
        return "layers with a sliding window beside layers without one are not supported"
    return ""


def _windows(config: Mapping[str, Any]) -> set[int | None]:
    """The sliding windows of the layers; None for a layer without one."""
    family, window = config["model_type"], config.get("sliding_window")
    if family == "mistral":
        return {window}
    if family not in ("qwen2", "qwen3") or not config.get("use_sliding_window"):
        return {None}
    kinds = config.get("layer_types") or []
    sliding = [k == "sliding_attention" for k in kinds] or [
        i >= config["max_window_layers"] for i in range(config["num_hidden_layers"])
    ]
    return {window if slides else None for slides in sliding}


def _dtype(config: Mapping[str, Any]) -> str:
    return {"bfloat16": "bf16", "float16": "bf16"}.get(str(config.get("torch_dtype") or config.get("dtype")), "fp32")


def _rope(config: Mapping[str, Any], name: str) -> Rope:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = float(config.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise SpecError(Problem(f"rope scaling {kind!r} of {name} is not supported; supported: default, llama3", "model.path"))
    missing = [k for k in LLAMA3_ROPE if not isinstance(scaling.get(k), int | float)]
    if missing:
        raise SpecError(Problem(f"rope scaling of {name} lacks {', '.join(missing)}", "model.path"))
    factor, low, high, original = (scaling[k] for k in LLAMA3_ROPE)
    return Rope(theta, float(factor), float(low), float(high), int(original))
