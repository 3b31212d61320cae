"""What is served: a model as numbers, in which formats, and what the fullest rank of a replica holds of one layer.

dense        q k v | o | gate up | down                      Llama, Qwen, Mistral, GPT-J, Falcon
experts      the feed-forward is `active` of `experts`       Mixtral, Qwen3 MoE, gpt-oss, Llama 4; with `shared` ones besides
latent       keys and values are one short vector a token    DeepSeek (Liu et al., DeepSeek-V2, section 2.1)

`n` tokens that choose k of E experts at random touch E (1 - (1 - k/E)^n) of them, and so many are read from memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import yaml

from rayplane.errors import Problem, SpecError
from rayplane.plan.step.share import Parts, parts, share
from rayplane.spec.layout import split
from rayplane.spec.model import ModelSpec

BITS = {"fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5, "int4": 4.5}
"""Of one number; four-bit formats keep a scale for each 16 or 32 of them."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of which each token uses a part."""

    experts: int
    active: int
    mlp: int
    shared_mlp: int = 0
    """Width of what every token uses besides."""
    dense_layers: int = 0
    """Layers that have a plain feed-forward, of the model's own `mlp`."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: ranks of the compressed queries and of keys with values, and the parts of a head."""

    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Formats:
    """Of weights, of what is multiplied with them, of keys and values."""

    weights: str = "bf16"
    compute: str = "bf16"
    kv: str = "bf16"
    attention: str = ""
    """Of the attention's weights where they are left in another format; empty: as the others."""
    blocks: bool = False
    """Whether fp8 weights have a scale for each block (DeepSeek-AI, DeepSeek-V3, section 3.3), not one for each matrix or row."""

    @property
    def tables(self) -> str:
        """Of embedding and head, which are not quantised."""
        return "fp32" if self.weights == "fp32" else "bf16"


@dataclass(frozen=True, slots=True)
class Served:
    """A model with what `ModelSpec` does not say."""

    model: ModelSpec
    formats: Formats = Formats()
    experts: Experts | None = None
    latent: Latent | None = None
    windowed: float = 0.0
    """Share of the layers whose attention sees only `model.window` keys; 1 where all do."""
    parallel: bool = False
    """Whether attention and feed-forward read the same input and are summed once (GPT-J, Falcon)."""

    @property
    def sums(self) -> int:
        """Sums over tp in a layer."""
        return 1 if self.parallel else 2


@dataclass(frozen=True, slots=True)
class Cut:
    """How one replica is cut; `attention_dp` ranks each serve sequences of their own in attention, `ep` ranks share the experts."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    attention_dp: int = 1

    @property
    def size(self) -> int:
        """Devices of a replica."""
        return self.tp * self.pp * self.cp

    def __str__(self) -> str:
        said = [f"{axis}{n}" for axis, n in (("pp", self.pp), ("cp", self.cp), ("tp", self.tp), ("ep", self.ep)) if n > 1]
        return " ".join([*said, *([f"attention dp{self.attention_dp}"] if self.attention_dp > 1 else [])]) or "1 device"


@dataclass(frozen=True, slots=True)
class Part:
    """On the fullest rank: elements of the weights of one layer, and the widths that its activations have."""

    attention: tuple[float, ...]
    """Of each matrix of attention."""
    feed_forward: tuple[float, ...]
    """Of each matrix that every token passes; empty where all of a layer's are experts'."""
    expert: tuple[float, ...]
    """Of each matrix of one expert."""
    experts: float
    """Experts on this rank."""
    expert_layers: float
    """Share of the layers that have experts."""
    head: float
    q_width: float
    kv_width: float
    """Elements of keys and values together that a token adds to the cache of one layer."""
    mlp_width: float
    cache_flops: float
    """Of one new token over one cached one, in one layer."""

    @property
    def layer_elements(self) -> float:
        """Elements of an average layer."""
        dense, experts = sum(self.feed_forward), self.experts * sum(self.expert)
        return sum(self.attention) + dense + experts * self.expert_layers


def part(of: Served, cut: Cut) -> Part:
    """What the fullest rank holds of a layer."""
    model, tp = of.model, cut.tp // cut.attention_dp
    held = share(_parts(model), cut.tp)
    lone = held if cut.attention_dp == 1 else share(_parts(model), tp)
    attention: tuple[float, ...] = (float(lone.stacked[0]), float(lone.stacked[1]))
    widths = (float(lone.q_width), 2.0 * lone.kv_width, 4.0 * lone.q_width)
    if of.latent:
        attention, widths = _latent(of.latent, model, tp)
    head = float(split(model.vocab, cut.tp, 0)[1] * model.hidden)
    q_width, kv_width, cache_flops = widths
    up = 2 if model.act == "swiglu" else 1
    if of.experts is None:
        dense = (float(held.stacked[2]), float(held.stacked[3]))
        return Part(attention, dense, (), 0.0, 0.0, head, q_width, kv_width, float(held.mlp_width), cache_flops)
    e, plain = of.experts, of.experts.dense_layers / model.layers
    width = plain * held.mlp_width + (1 - plain) * e.shared_mlp / cut.tp
    inner = e.mlp * cut.ep / cut.tp
    return Part(
        attention,
        (up * model.hidden * width, model.hidden * width) if width else (),
        (up * model.hidden * inner, model.hidden * inner),
        e.experts / cut.ep,
        1 - plain,
        head,
        q_width,
        kv_width,
        width + (1 - plain) * e.active * e.mlp / cut.tp,
        cache_flops,
    )


@lru_cache(maxsize=4)
def _parts(model: ModelSpec) -> Parts:
    """Looked up for each cut of a search."""
    return parts(model)


def _latent(of: Latent, model: ModelSpec, tp: int) -> tuple[tuple[float, ...], tuple[float, float, float]]:
    """Matrices, and widths as in `Part`; every rank keeps the whole cache, and the matrices that make it."""
    heads, hidden = split(model.heads, tp, 0)[1], model.hidden
    down = hidden * (of.q_rank + of.kv_rank + of.rope_dim)
    queries = (of.q_rank or hidden) * heads * (of.nope_dim + of.rope_dim)
    values = of.kv_rank * heads * (of.nope_dim + of.v_dim)
    matrices = (float(down), float(queries), float(values), float(heads * of.v_dim * hidden))
    cached = of.kv_rank + of.rope_dim
    return matrices, (float(heads * (of.nope_dim + of.rope_dim)), float(cached), 2.0 * heads * (cached + of.kv_rank))


def known(name: str) -> Served:
    """A published model by its usual name, `meta-llama/Llama-3.1-70B-Instruct`; SpecError for one that is not in the list."""
    plain = _plain(name)
    listed = _listed()
    found = [key for key in listed if plain.startswith(key)] or [key for key in listed if key in plain]
    if not found:
        near = difflib.get_close_matches(plain, listed, n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}" if near else f"add it to served.yaml, which has {len(listed)} names"
        raise SpecError(Problem(f"no numbers of a model called {name!r}; {hint}", "model"))
    return listed[max(found, key=len)]


def _plain(name: str) -> str:
    """Lower case, without the owner, with one kind of separator."""
    return name.rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-")


@cache
def _listed() -> dict[str, Served]:
    text = resources.files("rayplane.plan.serving").joinpath("served.yaml").read_text(encoding="utf-8")
    return {alias: _served(name, entry) for name, entry in yaml.safe_load(text).items() for alias in [name, *entry.get("also", [])]}


def _served(name: str, entry: Mapping[str, Any]) -> Served:
    numbers = dict(entry["model"])
    numbers.setdefault("kv_heads", numbers["heads"])
    numbers.setdefault("head_dim", numbers["hidden"] // numbers["heads"])
    experts = Experts(**entry["experts"]) if "experts" in entry else None
    latent = Latent(**entry["latent"]) if "latent" in entry else None
    model = ModelSpec(**numbers, name=name)
    return Served(model, Formats(), experts, latent, entry.get("windowed", 1.0 if model.window else 0.0), entry.get("parallel", False))
