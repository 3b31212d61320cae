"""A model as numbers: enough to build it, to cut it and to price it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayplane.errors import Problem, SpecError
from rayplane.spec.sharding import EMBED, Dim, TensorSpec


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al., RoFormer, section 3.2), with the frequency scaling of Llama 3.

    `factor` 1 means no scaling; else frequencies below `low_freq_factor` turns per `original_max_seq` are divided by it,
    those above `high_freq_factor` stay, and what lies between is blended.
    """

    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_seq: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer of the Llama family (Llama, SmolLM2, Qwen2, Qwen3)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    max_seq: int = 2048
    tied: bool = False
    norm_eps: float = 1e-5
    rope: Rope = Rope()
    qkv_bias: bool = False
    qk_norm: bool = False
    init_std: float = 0.02
    dtype: str = "fp32"
    name: str = "custom"

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the model, in model order: embedding, layers, final norm, head."""
        vocab, hidden = Dim("vocab", self.vocab), Dim("hidden", self.hidden, cut=False)
        embed = TensorSpec("embed", (vocab, hidden), EMBED, self.init_std, tied=self.tied)
        layers = [t for i in range(self.layers) for t in self._layer(i)]
        final = [TensorSpec("norm", (hidden,), self.layers, 0.0, decay=False)]
        if not self.tied:
            final.append(TensorSpec("head", (vocab, hidden), self.layers, self.init_std))
        return (embed, *layers, *final)

    def _layer(self, i: int) -> list[TensorSpec]:
        hidden, mlp = Dim("hidden", self.hidden, cut=False), Dim("mlp", self.mlp)
        heads = Dim("heads", self.heads, self.head_dim)
        kv_heads = Dim("kv_heads", self.kv_heads, self.head_dim, group=self.group)
        head_dim = Dim("head_dim", self.head_dim, cut=False)
        std, out_std = self.init_std, self.init_std / math.sqrt(2 * self.layers)
        shapes: list[tuple[str, tuple[Dim, ...], float]] = [("attn_norm", (hidden,), 0.0)]
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes.append((name, (rows, hidden), std))
            if self.qkv_bias:
                shapes.append((f"{name}_bias", (rows,), 0.0))
        if self.qk_norm:
            shapes += [("q_norm", (head_dim,), 0.0), ("k_norm", (head_dim,), 0.0)]
        shapes += [("o", (hidden, heads), out_std), ("mlp_norm", (hidden,), 0.0)]
        shapes += [("gate", (mlp, hidden), std), ("up", (mlp, hidden), std), ("down", (hidden, mlp), out_std)]
        return [TensorSpec(f"layers.{i}.{n}", dims, i, s, decay=len(dims) > 1) for n, dims, s in shapes]

    @property
    def num_params(self) -> int:
        """Parameters of the whole model, a tied embedding counted once."""
        return sum(t.numel for t in self.tensors())

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward for one token: 6 per matrix weight, and causal attention (PaLM, appendix B)."""
        matrices = sum(t.numel for t in self.tensors() if len(t.dims) > 1 and t.name != "embed")
        head = self.vocab * self.hidden if self.tied else 0
        attention = 6.0 * self.layers * self.heads * self.head_dim * seq_len
        return 6.0 * (matrices + head) + attention


def check_model(spec: ModelSpec) -> list[Problem]:
    """What makes these numbers impossible, as problems of the job's `model` section."""
    problems = [
        Problem(f"{getattr(spec, name)} must be at least 1", f"model.{name}")
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "max_seq")
        if getattr(spec, name) < 1
    ]
    if problems:
        return problems
    if spec.heads % spec.kv_heads:
        problems.append(
            Problem(
                f"{spec.kv_heads} does not divide heads ({spec.heads}); each KV head serves an equal group of query heads",
                "model.kv_heads",
            )
        )
    if spec.head_dim % 2:
        problems.append(Problem(f"{spec.head_dim} is odd; rotary embedding turns pairs of elements", "model.head_dim"))
    if spec.rope.factor > 1 and spec.rope.low_freq_factor >= spec.rope.high_freq_factor:
        message = f"{spec.rope.low_freq_factor} must be less than high_freq_factor ({spec.rope.high_freq_factor})"
        problems.append(Problem(message, "model.rope.low_freq_factor"))
    return problems


FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
"""`model_type` values of a Hugging Face config that this block covers."""


def from_hf_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The numbers of a Hugging Face `config.json` (Llama, SmolLM2, Qwen2, Qwen3)."""
    family = config.get("model_type")
    if reason := _hf_unsupported(config):
        raise SpecError(Problem(f"{name}: {reason}", "model.path"))
    heads, hidden = _whole(config, "num_attention_heads", name), _whole(config, "hidden_size", name)
    return ModelSpec(
        layers=_whole(config, "num_hidden_layers", name),
        hidden=hidden,
        heads=heads,
        kv_heads=_whole(config, "num_key_value_heads", name, heads),
        head_dim=_whole(config, "head_dim", name, hidden // heads),
        mlp=_whole(config, "intermediate_size", name),
        vocab=_whole(config, "vocab_size", name),
        max_seq=_whole(config, "max_position_embeddings", name, 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope=_hf_rope(config, name),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        init_std=config.get("initializer_range", 0.02),
        dtype={"bfloat16": "bf16", "float16": "bf16"}.get(str(config.get("torch_dtype") or config.get("dtype")), "fp32"),
        name=name,
    )


def _hf_unsupported(config: Mapping[str, Any]) -> str:
    """Why this block cannot compute what a config asks for; empty when it can."""
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"model_type {family!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
    if config.get("use_sliding_window") or (family == "mistral" and config.get("sliding_window")):
        return "sliding-window attention is not supported"
    if config.get("mlp_bias") or (config.get("attention_bias") and family != "qwen2"):
        return "biases on the output or MLP projections are not supported"
    if (act := config.get("hidden_act", "silu")) != "silu":
        return f"hidden_act {act!r} is not supported; supported: silu"
    if config.get("quantization_config"):
        return "quantized weights are not supported; use the model they were made from"
    return ""


def _whole(values: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    """A whole number above 0 from a model's own description; its absence is an error unless there is a default."""
    value = values.get(key)
    value = default if value is None else value
    if value is None:
        raise SpecError(Problem(f"{name} lacks {key}", "model.path"))
    if type(value) is not int or value < 1:
        raise SpecError(Problem(f"{key} of {name} is {value!r}; one whole number above 0 is supported", "model.path"))
    return value


LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""What a config says of Llama 3's rope scaling."""


def _hf_rope(config: Mapping[str, Any], name: str) -> Rope:
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


def from_gguf_header(fields: Mapping[str, Any], tensor_names: frozenset[str], name: str) -> ModelSpec:
    """The numbers of a GGUF file: `fields` are its metadata as plain values (ggml's GGUF specification)."""
    arch = fields.get("general.architecture")
    if reason := _gguf_unsupported(fields, tensor_names):
        raise SpecError(Problem(f"{name}: {reason}", "model.path"))
    heads = _whole(fields, f"{arch}.attention.head_count", name)
    hidden = _whole(fields, f"{arch}.embedding_length", name)
    return ModelSpec(
        layers=_whole(fields, f"{arch}.block_count", name),
        hidden=hidden,
        heads=heads,
        kv_heads=_whole(fields, f"{arch}.attention.head_count_kv", name, heads),
        head_dim=_whole(fields, f"{arch}.attention.key_length", name, hidden // heads),
        mlp=_whole(fields, f"{arch}.feed_forward_length", name),
        vocab=_whole(fields, f"{arch}.vocab_size", name, len(fields.get("tokenizer.ggml.tokens", ())) or None),
        max_seq=_whole(fields, f"{arch}.context_length", name),
        tied="output.weight" not in tensor_names,
        norm_eps=float(fields.get(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)),
        rope=Rope(float(fields.get(f"{arch}.rope.freq_base", 10000.0))),
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        name=name,
    )


def _gguf_unsupported(fields: Mapping[str, Any], tensor_names: frozenset[str]) -> str:
    """Why this block cannot compute what a GGUF file asks for; empty when it can."""
    arch = fields.get("general.architecture")
    if arch not in {"llama", "qwen2", "qwen3"}:
        return f"GGUF architecture {arch!r} is not supported; supported: llama, qwen2, qwen3"
    if "rope_freqs.weight" in tensor_names:
        return "it stores its own rope frequencies, which are not supported; use the Hugging Face folder"
    if (scaling := fields.get(f"{arch}.rope.scaling.type", "none")) != "none":
        return f"rope scaling {scaling!r} is not supported; use the Hugging Face folder"
    if fields.get(f"{arch}.expert_count"):
        return "mixtures of experts are not supported"
    return ""
