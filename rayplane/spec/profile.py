"""What `rayplane calibrate` measured of a cluster, dated, as a file that the planner prefers to its catalog.

    date: 2026-11-30T09:00:00Z
    hardware: {device: cpu, name: AMD EPYC, nodes: 1, devices: 2}
    versions: {rayplane: 0.1.0, torch: 2.13.0}
    products:
    - {precision: fp32, tokens: 512, rows: 512, columns: 1376, busy: 2, forward_s: 3.1e-3, input_grad_s: 3.2e-3, weight_grad_s: 6.6e-3}
    …

Seconds are medians, with all devices at work at once unless `busy` says otherwise. What was not measured is an empty list.
`rayplane plan --observed … --save-profile FILE` adds how far off predictions with these figures were for a job that ran:

    observed: {date: 2026-12-01T09:00:00Z, run: small, model: reference, layout: dp2 mb2, windows: 10}
    correction:
    - {term: compute, value: 1.07, spread: 0.02, seen: 4}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from rayplane.errors import Problem, SpecError
from rayplane.spec.document import Document, read_document
from rayplane.spec.section import Count, NonNegative, Positive, PositiveInt, Section

FORMAT: Literal[2] = 2
"""1 knew nothing of `observed`; it is read as ever."""
Precision = Literal["fp32", "bf16"]
Seconds = Annotated[float, Field(gt=0, lt=1e5)]
Term = Literal["compute", "tp", "dp", "cp", "p2p", "host"]


class Hardware(Section):
    """Where it was measured."""

    device: str
    """Device kind of the catalog."""
    name: str
    """As the hardware calls itself."""
    nodes: PositiveInt
    devices: PositiveInt
    """Of all nodes."""


class Versions(Section):
    """What it was measured with."""

    rayplane: str
    torch: str


class ProductTimes(Section):
    """x W^T for x [tokens, columns] and W [rows, columns], and the two products of its backward."""

    precision: Precision
    tokens: PositiveInt
    rows: PositiveInt
    columns: PositiveInt
    busy: PositiveInt
    """Devices of a node that were at work."""
    forward_s: Seconds
    input_grad_s: Seconds
    weight_grad_s: Seconds

    @property
    def flops(self) -> float:
        """Of one product."""
        return 2.0 * self.tokens * self.rows * self.columns


class AttentionTimes(Section):
    """Causal attention of some heads."""

    precision: Precision
    samples: PositiveInt
    seq_len: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    forward_s: Seconds
    backward_s: Seconds


class LayerTimes(Section):
    """A layer of the Llama family as the runtime executes it, cut over tp, or its sequence over cp."""

    precision: Precision
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    mlp: PositiveInt
    samples: PositiveInt
    seq_len: PositiveInt
    tp: PositiveInt = 1
    cp: PositiveInt = 1
    forward_s: Seconds
    backward_s: Seconds


class HeadTimes(Section):
    """Head and loss with their gradients."""

    precision: Precision
    hidden: PositiveInt
    vocab: PositiveInt
    tokens: PositiveInt
    seconds: Seconds


class MemoryTimes(Section):
    """An element-wise kernel over more than the caches hold: bytes read and written."""

    bytes: PositiveInt
    seconds: Seconds


class OptimizerTimes(Section):
    """AdamW with the global norm, over fp32 parameters on the device."""

    params: PositiveInt
    seconds: Seconds


class CollectiveTimes(Section):
    """A collective of `size` ranks, `per_island` of them in one island; all such groups at once. `bytes`: of the whole tensor."""

    op: Literal["all_reduce", "all_gather", "reduce_scatter"]
    size: PositiveInt
    per_island: PositiveInt
    bytes: PositiveInt
    seconds: Seconds


class MessageTimes(Section):
    """From a send to its arrival, within an island or across; all pairs at once."""

    inside: bool
    bytes: PositiveInt
    seconds: Seconds


class Factor(Section):
    """How much longer a term of the step takes than predicted, as observed of jobs."""

    term: Term
    value: Positive
    spread: NonNegative
    """Standard deviation of its logarithm."""
    seen: Count = 0
    """In how many phases of a stage; 0: in none, and it is what was believed before."""


class Observed(Section):
    """Of what run the correction was learned, and when."""

    date: str
    """UTC, as 2026-11-30T09:00:00Z."""
    run: str
    model: str
    layout: str
    windows: PositiveInt
    """Of time, over which the medians were taken."""


class Profile(Section):
    """The whole file."""

    format: Literal[1, 2] = FORMAT
    date: str
    """UTC, as 2026-11-30T09:00:00Z."""
    hardware: Hardware
    versions: Versions
    fixed_bytes: PositiveInt | None = None
    """Memory of a rank before it has a model."""
    products: tuple[ProductTimes, ...] = ()
    attention: tuple[AttentionTimes, ...] = ()
    layers: tuple[LayerTimes, ...] = ()
    heads: tuple[HeadTimes, ...] = ()
    memory: tuple[MemoryTimes, ...] = ()
    optimizer: tuple[OptimizerTimes, ...] = ()
    collectives: tuple[CollectiveTimes, ...] = ()
    messages: tuple[MessageTimes, ...] = ()
    observed: Observed | None = None
    correction: tuple[Factor, ...] = ()


HEADER = "# Measured by `rayplane calibrate`, or observed of jobs. Seconds are medians; see rayplane/spec/profile.py.\n"


def read_profile(path: Path) -> Profile:
    """Read and check a profile. Raises SpecError with every problem, by file, line and field."""
    document = read_document(path)
    problems = list(document.problems)
    try:
        # As JSON, in which a list may stand for a tuple.
        return Profile.model_validate_json(json.dumps(document.value, default=str))
    except ValidationError as error:
        problems += [_problem(document, fault) for fault in error.errors(include_url=False)]
    raise SpecError(sorted(problems, key=lambda p: p.line))


def profile_text(profile: Profile) -> str:
    """The profile as YAML, one measurement per line."""
    lines = [HEADER]
    for name, value in profile.model_dump(mode="json", exclude_none=True).items():
        if isinstance(value, list):
            lines += [f"{name}:\n", *(f"- {_flow(row)}\n" for row in value)] if value else []
        else:
            lines.append(f"{name}: {_flow(value)}\n")
    return "".join(lines)


def _flow(value: Any) -> str:
    return yaml.safe_dump(_rounded(value), default_flow_style=True, sort_keys=False, width=10**6).removesuffix("...\n").strip()


def _rounded(value: Any) -> Any:
    """Four digits: more are noise."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _problem(document: Document, fault: Any) -> Problem:
    words = {"missing": "is missing", "extra_forbidden": "unknown field"}
    message = words.get(fault["type"], f"{fault['msg'][0].lower()}{fault['msg'][1:]}")
    return document.problem(fault["loc"], f"{message}; run `rayplane calibrate` for a new profile")
