"""Tiny models of every family as `transformers` makes them, saved to folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
VOCAB = 61

LLAMA: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "intermediate_size": 50,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama3": ("Llama", {**LLAMA, "tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
    "llama-biases": ("Llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "smollm2-9-heads": (
        "Llama",
        {**LLAMA, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    ),
    "mistral-window": ("Mistral", {**LLAMA, "sliding_window": 5}),
    "mistral-full": ("Mistral", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2", {**LLAMA, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 10}),
    "gpt2": ("GPT2", {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": VOCAB, "n_positions": 64, "initializer_range": 0.2}),
    "gpt2-narrow": ("GPT2", {"n_embd": 24, "n_layer": 1, "n_head": 3, "n_inner": 50, "vocab_size": VOCAB, "n_positions": 12}),
}


def save(family: str, folder: Path) -> torch.nn.Module:
    """A random model, in fp32 and without dropout; biases and norms are random too, or nothing would show that they are used."""
    kind, numbers = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**numbers)
    torch.manual_seed(7)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model
