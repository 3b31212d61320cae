"""A model as numbers: enough to build it, to cut it and to price it.

                          norm        positions  act      biases                  q, k norms   window
Llama, SmolLM2            rmsnorm     rope       swiglu   -                       -            -
Mistral                   rmsnorm     rope       swiglu   -                       -            some versions
Qwen2                     rmsnorm     rope       swiglu   q, k, v                 -            -
Qwen3                     rmsnorm     rope       swiglu   -                       yes          -
GPT-2                     layernorm   learned    gelu     q, k, v, o, up, down    -            -
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rayplane.errors import Problem
from rayplane.spec.sharding import EMBED, Dim, TensorSpec

_Shape = tuple[str, tuple[Dim, ...], float]
"""Name within the layer, dims and initial standard deviation."""


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
    """A decoder-only transformer of equal layers, each a norm before attention and a norm before the feed-forward."""

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
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """A layernorm has a bias."""
    positions: Literal["rope", "learned"] = "rope"
    """`learned`: a table of `max_seq` rows, added to the embedding; `rope` is then of no effect."""
    act: Literal["swiglu", "gelu"] = "swiglu"
    """swiglu(gate, up), or gelu(up) in its tanh form."""
    o_bias: bool = False
    mlp_bias: bool = False
    window: int = 0
    """A token attends to itself and the `window` - 1 tokens before it; 0 means to all before it."""
    init_std: float = 0.02
    dtype: str = "fp32"
    name: str = "custom"

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the model, in model order: embedding, positions, layers, final norm, head."""
        vocab, hidden = Dim("vocab", self.vocab), Dim("hidden", self.hidden, cut=False)
        first = [TensorSpec("embed", (vocab, hidden), EMBED, self.init_std, tied=self.tied)]
        if self.positions == "learned":
            first.append(TensorSpec("positions", (Dim("positions", self.max_seq, cut=False), hidden), EMBED, self.init_std))
        layers = [t for i in range(self.layers) for t in self._layer(i)]
        final = [TensorSpec(name, dims, self.layers, std, decay=False) for name, dims, std in self._norm("norm")]
        if not self.tied:
            final.append(TensorSpec("head", (vocab, hidden), self.layers, self.init_std))
        return (*first, *layers, *final)

    def _layer(self, i: int) -> list[TensorSpec]:
        shapes = [*self._norm("attn_norm"), *self._attention(), *self._norm("mlp_norm"), *self._feed_forward()]
        return [TensorSpec(f"layers.{i}.{n}", dims, i, s, decay=len(dims) > 1) for n, dims, s in shapes]

    def _attention(self) -> Iterator[_Shape]:
        hidden, head_dim = Dim("hidden", self.hidden, cut=False), Dim("head_dim", self.head_dim, cut=False)
        heads = Dim("heads", self.heads, self.head_dim)
        kv_heads = Dim("kv_heads", self.kv_heads, self.head_dim, group=self.group)
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield name, (rows, hidden), self.init_std
            if self.qkv_bias:
                yield f"{name}_bias", (rows,), 0.0
        if self.qk_norm:
            yield "q_norm", (head_dim,), 0.0
            yield "k_norm", (head_dim,), 0.0
        yield "o", (hidden, heads), self._out_std
        if self.o_bias:
            yield "o_bias", (hidden,), 0.0

    def _feed_forward(self) -> Iterator[_Shape]:
        hidden, mlp = Dim("hidden", self.hidden, cut=False), Dim("mlp", self.mlp)
        for name in ("gate", "up") if self.act == "swiglu" else ("up",):
            yield name, (mlp, hidden), self.init_std
            if self.mlp_bias:
                yield f"{name}_bias", (mlp,), 0.0
        yield "down", (hidden, mlp), self._out_std
        if self.mlp_bias:
            yield "down_bias", (hidden,), 0.0

    def _norm(self, name: str) -> Iterator[_Shape]:
        hidden = Dim("hidden", self.hidden, cut=False)
        yield name, (hidden,), 0.0
        if self.norm == "layernorm":
            yield f"{name}_bias", (hidden,), 0.0

    @property
    def _out_std(self) -> float:
        """Smaller where a layer adds to the residual stream (Radford et al., GPT-2, section 2.3)."""
        return self.init_std / math.sqrt(2 * self.layers)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model, a tied embedding counted once."""
        return sum(t.numel for t in self.tensors())

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward for one token: 6 per matrix weight, and causal attention (PaLM, appendix B)."""
        by_layer = [(t.layer, t.numel) for t in replace(self, layers=1).tensors() if len(t.dims) > 1]
        matrices = sum(n * (self.layers if layer == 0 else 1) for layer, n in by_layer if layer != EMBED)
        head = self.vocab * self.hidden if self.tied else 0
        attention = 12.0 * self.layers * self.heads * self.head_dim * self.mean_keys(seq_len)
        return 6.0 * (matrices + head) + attention

    def mean_keys(self, seq_len: int) -> float:
        """How many keys a token of a sequence attends to, on average: half the sequence, or less with a window."""
        window = min(self.window or seq_len, seq_len)
        return window - window * window / (2 * seq_len)


MAX_LAYERS = 10_000


def check_model(spec: ModelSpec) -> list[Problem]:
    """What makes these numbers impossible, as problems of the job's `model` section."""
    problems = [
        Problem(f"{getattr(spec, name)} must be at least 1", f"model.{name}")
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "max_seq")
        if getattr(spec, name) < 1
    ]
    for name in ("norm_eps", "init_std"):  # a model's own description may hold anything here
        value = getattr(spec, name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            problems.append(Problem(f"{value!r} is not a number of at least 0", f"model.{name}"))
    if spec.layers > MAX_LAYERS:
        problems.append(Problem(f"{spec.layers} is more than {MAX_LAYERS}", "model.layers"))
    if problems:
        return problems
    if spec.heads % spec.kv_heads:
        problems.append(
            Problem(
                f"{spec.kv_heads} does not divide heads ({spec.heads}); each KV head serves an equal group of query heads",
                "model.kv_heads",
            )
        )
    if spec.head_dim % 2 and spec.positions == "rope":
        problems.append(Problem(f"{spec.head_dim} is odd; rotary embedding turns pairs of elements", "model.head_dim"))
    if spec.rope.factor > 1 and spec.rope.low_freq_factor >= spec.rope.high_freq_factor:
        message = f"{spec.rope.low_freq_factor} must be less than high_freq_factor ({spec.rope.high_freq_factor})"
        problems.append(Problem(message, "model.rope.low_freq_factor"))
    return problems
