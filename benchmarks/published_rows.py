"""A published measurement in the planner's words: model, workload, layout, cluster, and what the software did."""

from __future__ import annotations

import re
from dataclasses import dataclass

from published_practice import Row, practice_of, year_of

from rayplane.plan.machine.catalog import described, device
from rayplane.plan.step.practice import Practice
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, LinkSection, LinksSection, NodeSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec, check_model
from rayplane.spec.plan import Workload

KINDS = (
    ("A100.*40GB", "a100-40gb"),
    ("A100", "a100-80gb"),
    ("H100.*96GB", "h100-96gb"),
    ("H100.*PCIe", "h100-pcie"),
    ("H100", "h100-sxm"),
    ("H200", "h200"),
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B200", "b200"),
    ("V100", "v100"),
    ("MI300X", "mi300x"),
    ("L40S", "l40s"),
)
"""The catalog's device for a row's GPU; the first that matches."""
GIB = 1.073741824
NVL72 = ("gb200", "gb300")
DEGREES = ("dp", "pp", "cp", "tp", "vpp", "micro_batch", "global_batch")
MAX_DEVICES = 1_000_000


class CannotExpressError(Exception):
    """Why a row is not in the planner's words."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row, translated. `layouts` are those that what it leaves open could mean, likeliest first."""

    id: str
    source: str
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    layouts: tuple[Layout, ...]
    practice: Practice
    year: int


def case_of(row: Row) -> Case:
    """Translate a row. Raises CannotExpressError with the reason where that is not possible."""
    try:
        return _case(row)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CannotExpressError(f"a field is missing or of another kind: {error!r}") from error


def _case(row: Row) -> Case:
    kind = _kind(row)
    model = _model(row)
    _check(row, model)
    return Case(
        id=row["id"],
        source=row["source"]["title"],
        model=model,
        workload=Workload(_number(row, "global_batch"), model.max_seq, precision_of(row)),
        cluster=_cluster(row, kind),
        layouts=tuple(_layouts(row, model)),
        practice=practice_of(row, kind),
        year=year_of(row),
    )


def _check(row: Row, model: ModelSpec) -> None:
    """Whether a model of these sizes can be, and be cut so."""
    layout, devices = row["layout"], row["hardware"].get("n_gpus") or _size(row)
    wrong = [str(problem) for problem in check_model(model)]
    wrong += [f"{name} is {n}" for name in DEGREES if (n := layout.get(name)) is not None and int(n) < 1]
    if not wrong and _size(row) != devices:
        wrong = [f"tp x pp x dp x cp is {_size(row)}, on {devices} devices"]
    if not wrong and (ranks := _size(row)) > MAX_DEVICES:
        wrong = [f"{ranks} devices are more than {MAX_DEVICES}"]
    if not wrong and layout["dp"] * (layout.get("micro_batch") or 1) > layout["global_batch"]:
        wrong = [f"{layout['dp']} replicas of a micro_batch have more samples than the global_batch of {layout['global_batch']}"]
    if wrong:
        raise CannotExpressError(f"contradicts itself: {'; '.join(wrong)}")


def precision_of(row: Row) -> str:
    """The planner's word for what products are computed in; fp16 costs what bf16 does."""
    dtype = row["dtype"].lower()
    if "fp4" in dtype:
        return "fp4"
    return "fp8" if "fp8" in dtype else "fp32" if dtype == "fp32" else "bf16"


def _kind(row: Row) -> str:
    gpu = row["hardware"]["gpu"] or "A100-SXM-80GB"
    for pattern, kind in KINDS:
        if re.search(pattern, gpu):
            return kind
    raise CannotExpressError(f"GPU {gpu} is not in the catalog")


def _number(row: Row, name: str) -> int:
    value = row["layout"].get(name)
    if not value:
        raise CannotExpressError(f"{name} is not stated")
    return int(value)


def _model(row: Row) -> ModelSpec:
    m = row["model"]
    if m.get("moe"):
        raise CannotExpressError("a mixture of experts")
    if not m.get("layers"):
        raise CannotExpressError("the model's sizes are not stated")
    gated = bool(m["gated_mlp"])
    return ModelSpec(
        layers=m["layers"],
        hidden=m["hidden"],
        heads=m["heads"],
        kv_heads=m["kv_heads"] or m["heads"],
        head_dim=m.get("head_dim") or m["hidden"] // m["heads"],
        mlp=m["ffn"],
        vocab=m["vocab"],
        max_seq=m["seq"],
        tied=bool(m["tied_embeddings"]),
        norm="rmsnorm" if gated else "layernorm",
        positions="rope" if gated else "learned",
        act="swiglu" if gated else "gelu",
        name=m["name"],
    )


def _cluster(row: Row, kind: str) -> ClusterSpec:
    h, known = row["hardware"], device(kind)
    devices = h.get("n_gpus") or _size(row)
    per_node = min(h.get("gpus_per_node") or 8, devices)
    fabric = None
    if gbits_s := h.get("inter_node_gbps_per_gpu"):
        fabric = LinkSection(gbytes_s=gbits_s / 8, latency_us=known.links.fabric.latency_us)
    nodes, together = -(-devices // per_node), 72 // per_node if kind in NVL72 else 1
    # What vendors call a GB of device memory is a GiB.
    entry = NodeSection(name="n", device=kind, devices=per_node, memory_gb=known.memory_bytes / 1e9 * GIB)
    sections = [
        entry.model_copy(update={"name": f"n{i}", "island": f"i{i}", "count": min(together, nodes - first)})
        for i, first in enumerate(range(0, nodes, together))
    ]
    if together == 1:
        sections = [entry.model_copy(update={"count": nodes})]
    return described(ClusterSection(nodes=sections, links=LinksSection(fabric=fabric)))


def _size(row: Row) -> int:
    layout = row["layout"]
    return _number(row, "tp") * _number(row, "pp") * _number(row, "dp") * int(layout.get("cp") or 1)


def _layouts(row: Row, model: ModelSpec) -> list[Layout]:
    given = row["layout"]
    dp, pp, tp, cp = _number(row, "dp"), _number(row, "pp"), _number(row, "tp"), int(given.get("cp") or 1)
    schedule, vpp = _schedule(row, model)
    # The Megatron family keeps whole gradients while microbatches add to them; its "zero 2" reduces once a step.
    zero = int(given.get("zero") or 0)
    # Under a pipe FSDP gathers once a step too.
    zero = 0 if dp * cp == 1 else 1 if zero >= 2 and pp > 1 else zero
    sizes = (
        [given["micro_batch"]] if given.get("micro_batch") else [n for n in range(1, 65) if _number(row, "global_batch") // dp % n == 0]
    )
    return [
        Layout(
            dp=dp,
            pp=pp,
            cp=cp,
            tp=tp,
            sp=bool(given.get("sp")) and tp > 1,
            vpp=vpp,
            schedule=schedule,
            micro_batch=micro_batch,
            zero=zero,
            recompute=recompute,
            recompute_layers=layers,
            boundaries=_boundaries(model.layers, pp * vpp),
        )
        for micro_batch in sizes
        for recompute, layers in _recompute(given.get("recompute"), row.get("notes") or "", model.layers // (pp * vpp))
    ]


def _schedule(row: Row, model: ModelSpec) -> tuple[str, int]:
    given, notes = row["layout"], row.get("notes") or ""
    pp, vpp = given["pp"], given.get("vpp") or 1
    if found := re.search(r"schedule=([\w*-]+)", notes):
        name = found[1]
        known = {"ZB-1p": ("zb-h1", 1), "ZB-2p": ("zb-h2", 1), "ZB-V": ("zbv", 2), "1F1B": ("1f1b", 1)}
        if name in known:
            return known[name]
        vpp = vpp if vpp > 1 else (model.layers + 2) // pp
    return ("interleaved", vpp) if pp > 1 and vpp > 1 else ("1f1b", 1)


def _recompute(given: str | None, notes: str, layers: int) -> list[tuple[str, int]]:
    """(recompute, its layers); where it is not stated, any."""
    if given is None and "recompute not stated (none" in notes:
        return [("none", 0)]
    if given is None:
        return [("none", 0), ("selective", 0), *(("full", n) for n in sorted({layers // 4, layers // 2, 3 * layers // 4, 0}))]
    if given.startswith("selective"):
        return [("full", max(1, layers // 2))] if "layer" in given else [("selective", 0)]
    return [(given, 0)]


def _boundaries(layers: int, chunks: int) -> tuple[int, ...]:
    """By count; where that does not divide but two layers more would, embedding and head take the place of a layer each."""
    if layers % chunks and (layers + 2) % chunks == 0:
        each = (layers + 2) // chunks
        return (each - 1, *[each] * (chunks - 2), each - 1)
    return even_boundaries(layers, chunks)
