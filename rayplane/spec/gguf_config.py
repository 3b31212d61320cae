"""The numbers of a GGUF file, from its metadata and the names of its tensors (ggml's GGUF specification)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayplane.errors import Problem, SpecError
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.whole import whole

ARCHITECTURES = ("gpt2", "llama", "qwen2", "qwen3")
"""Values of `general.architecture` that the block covers; Mistral's is llama."""


def from_gguf_header(fields: Mapping[str, Any], tensor_names: frozenset[str], name: str) -> ModelSpec:
    """The numbers of a GGUF file: `fields` are its metadata as plain values."""
    arch = fields.get("general.architecture")
    if reason := _unsupported(fields, tensor_names):
        raise SpecError(Problem(f"{name}: {reason}", "model.path"))
    is_gpt2 = arch == "gpt2"
    heads = whole(fields, f"{arch}.attention.head_count", name)
    hidden = whole(fields, f"{arch}.embedding_length", name)
    return ModelSpec(
        layers=whole(fields, f"{arch}.block_count", name),
        hidden=hidden,
        heads=heads,
        kv_heads=whole(fields, f"{arch}.attention.head_count_kv", name, heads),
        head_dim=whole(fields, f"{arch}.attention.key_length", name, hidden // heads),
        mlp=whole(fields, f"{arch}.feed_forward_length", name),
        vocab=whole(fields, f"{arch}.vocab_size", name, len(fields.get("tokenizer.ggml.tokens", ())) or None),
        max_seq=whole(fields, f"{arch}.context_length", name),
        tied="output.weight" not in tensor_names,
        norm_eps=float(fields.get(f"{arch}.attention.layer_norm{'' if is_gpt2 else '_rms'}_epsilon", 1e-5)),
        rope=Rope(float(fields.get(f"{arch}.rope.freq_base", 10000.0))),
        qkv_bias=bool(tensor_names & {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}),
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        norm="layernorm" if is_gpt2 else "rmsnorm",
        positions="learned" if is_gpt2 else "rope",
        act="gelu" if is_gpt2 else "swiglu",
        o_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        name=name,
    )


def _unsupported(fields: Mapping[str, Any], tensor_names: frozenset[str]) -> str:
    """Why this block cannot compute what a GGUF file asks for; empty when it can."""
    arch = fields.get("general.architecture")
    if arch not in ARCHITECTURES:
        return f"GGUF architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
    if "rope_freqs.weight" in tensor_names:
        return "it stores its own rope frequencies, which are not supported; use the Hugging Face folder"
    if (scaling := fields.get(f"{arch}.rope.scaling.type", "none")) != "none":
        return f"rope scaling {scaling!r} is not supported; use the Hugging Face folder"
    if fields.get(f"{arch}.expert_count"):
        return "mixtures of experts are not supported"
    return ""
