"""What to measure of a cluster so that models can be priced on it, as rows of a profile (`spec.profile`) without their seconds.

            of each yardstick: the job's model, or what is usual on such devices
products    its matrices, whole and cut over tp, times some numbers of tokens; some again with one device at work
layers      on each rank by itself, by tokens; and cut over tp, and with the sequence cut over cp
groups      2, 4, 8, … neighbours, as tp would have them, and one rank of each of those, as dp would
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rayplane.plan.machine.catalog import DeviceKind, slowest
from rayplane.plan.machine.topology import Topology, topology
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec

Row = dict[str, Any]
LONGEST_S = 0.1
"""By the catalog; what takes longer is measured with fewer tokens."""
FEWEST_TOKENS = 16
TINY = {"hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "mlp": 128, "tp": 1, "cp": 1, "samples": 1, "seq_len": 16}
"""A layer of which nothing shows but launches."""
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
QUICK_SIZES = (1 << 12, 1 << 20, 1 << 24)
MEMORY_BYTES = 192 << 20
OPTIMIZER_PARAMS = 8_000_000


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Shapes of one model."""

    model: ModelSpec
    seq_len: int
    precisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupProbe:
    """The groups of an axis of a layout, and their shape."""

    dp: int
    pp: int
    tp: int
    axis: str
    size: int
    per_island: int


@dataclass(frozen=True, slots=True)
class Probes:
    """Everything to measure; `least_s`: how long each thing is repeated."""

    rows: dict[str, list[Row]]
    groups: tuple[GroupProbe, ...]
    sizes: tuple[int, ...]
    least_s: float


def usual(device: DeviceKind, quick: bool) -> tuple[Yardstick, ...]:
    """Models as they are trained on such devices."""
    if device.is_host:
        small = ModelSpec(1, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1376, vocab=8192)
        large = ModelSpec(1, hidden=1024, heads=16, kv_heads=4, head_dim=64, mlp=2816, vocab=8192)
        seq_len, precisions = 256, ("fp32", "bf16")
    else:
        small = ModelSpec(1, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab=128256)
        large = ModelSpec(1, hidden=8192, heads=64, kv_heads=8, head_dim=128, mlp=28672, vocab=128256)
        seq_len, precisions = 4096, ("bf16", "fp32")
    if quick:
        return (Yardstick(small, seq_len, precisions[:1]),)
    return Yardstick(small, seq_len, precisions), Yardstick(large, seq_len, precisions[:1])


def probes(cluster: ClusterSpec, yardsticks: Sequence[Yardstick], quick: bool) -> Probes:
    """What to measure of a cluster; `quick`: of each kind as little as will do."""
    device, shape = slowest(cluster), topology(cluster)
    busy = max(n.devices for n in cluster.nodes)
    rows: dict[str, list[Row]] = {kind: [] for kind in ("products", "attention", "layers", "heads")}
    for of in yardsticks:
        for precision in of.precisions:
            rows["products"] += _products(of, precision, device, busy, quick)
            rows["attention"] += _attention(of, precision, quick)
            rows["layers"] += _layers(of, precision, device, quick)
            rows["layers"] += _cut_layers(of, precision, device, shape)
            tokens = _tokens(of.seq_len, of.model.vocab * of.model.hidden, precision, device)
            rows["heads"].append({"precision": precision, "hidden": of.model.hidden, "vocab": of.model.vocab, "tokens": tokens})
    rows["memory"] = [{"bytes": MEMORY_BYTES}]
    rows["optimizer"] = [{"params": OPTIMIZER_PARAMS}]
    sizes = QUICK_SIZES if quick else SIZES
    return Probes(rows, tuple(_groups(shape, cluster.num_devices)), sizes, 0.05 if quick else 0.1)


def merged(measured: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    """One row for each thing that several ranks have measured, with the median of their seconds."""
    seconds: dict[tuple[str, frozenset[tuple[str, Any]]], list[Row]] = {}
    for kind, row in measured:
        what = frozenset(item for item in row.items() if not _is_seconds(item[0]))
        seconds.setdefault((kind, what), []).append(row)
    out: dict[str, list[Row]] = {}
    for (kind, _), rows in seconds.items():
        out.setdefault(kind, []).append({n: median(r[n] for r in rows) if _is_seconds(n) else value for n, value in rows[0].items()})
    return out


def _is_seconds(name: str) -> bool:
    return name == "seconds" or name.endswith("_s")


def _products(of: Yardstick, precision: str, device: DeviceKind, busy: int, quick: bool) -> Iterator[Row]:
    for samples, tp, alone in ((2, 1, False),) if quick else ((1, 1, False), (4, 1, True), (4, 2, False)):
        for rows, columns in _matrices(of.model, tp):
            tokens = _tokens(samples * of.seq_len, rows * columns, precision, device)
            row = {"precision": precision, "tokens": tokens, "rows": rows, "columns": columns}
            yield {**row, "busy": busy}
            if alone and busy > 1:
                yield {**row, "busy": 1}


def _matrices(model: ModelSpec, tp: int) -> list[tuple[int, int]]:
    """Rows and columns of a layer's matrices as they are multiplied, cut over tp."""
    q, kv, up = model.heads * model.head_dim, model.kv_heads * model.head_dim, 2 * model.mlp
    return [((q + 2 * kv) // tp, model.hidden), (model.hidden, q // tp), (up // tp, model.hidden), (model.hidden, model.mlp // tp)]


def _attention(of: Yardstick, precision: str, quick: bool) -> Iterator[Row]:
    tokens = 2 * of.seq_len
    for seq_len in (of.seq_len,) if quick else (of.seq_len // 2, of.seq_len, 4 * of.seq_len):
        shape = {"seq_len": seq_len, "heads": of.model.heads, "head_dim": of.model.head_dim}
        yield {"precision": precision, "samples": max(1, tokens // seq_len), **shape}


def _layers(of: Yardstick, precision: str, device: DeviceKind, quick: bool) -> Iterator[Row]:
    yield {**TINY, "precision": precision}
    for samples in (2,) if quick else (1, 4):
        yield _fitting(of, precision, device, samples)


def _cut_layers(of: Yardstick, precision: str, device: DeviceKind, shape: Topology) -> Iterator[Row]:
    """Over neighbours, two of them, since more make no other kernels."""
    if shape.groups(2) * 2 == sum(devices * count for devices, count in shape.islands):
        for cut in ("tp", "cp"):
            yield {**_fitting(of, precision, device, 4), cut: 2}


def _fitting(of: Yardstick, precision: str, device: DeviceKind, samples: int) -> Row:
    """With as many samples as are done in time."""
    per_layer = sum(rows * columns for rows, columns in _matrices(of.model, 1))
    tokens = _tokens(samples * of.seq_len, per_layer, precision, device)
    seq_len = min(of.seq_len, tokens)
    return {**_layer(of, precision), "samples": max(1, tokens // seq_len), "seq_len": seq_len}


def _layer(of: Yardstick, precision: str) -> Row:
    m = of.model
    shape = {"hidden": m.hidden, "heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim, "mlp": m.mlp}
    return {"precision": precision, **shape, "tp": 1, "cp": 1}


def _tokens(wanted: int, weights: int, precision: str, device: DeviceKind) -> int:
    """As many tokens, or what a product with so many weights does in time."""
    longest = LONGEST_S * device.gemm_efficiency * device.peak_flops[precision] / (2 * weights)
    while wanted > max(longest, FEWEST_TOKENS):
        wanted //= 2
    return wanted


def _groups(shape: Topology, devices: int) -> Iterator[GroupProbe]:
    """Every shape of group once: collectives over tp and dp, and messages over pp."""
    seen = set[tuple[str, int, int]]()
    tp = 1
    while tp <= devices:
        if shape.groups(tp) * tp == devices:
            layout = Layout(dp=devices // tp, tp=tp)
            for axis, group in (("tp", shape.tp_group(layout)), ("dp", shape.dp_group(layout))):
                if group.size > 1 and ("", group.size, group.per_island) not in seen:
                    seen.add(("", group.size, group.per_island))
                    yield GroupProbe(layout.dp, 1, tp, axis, group.size, group.per_island)
        tp *= 2
    if devices % 2 == 0 and devices > 1:
        for layout in (Layout(dp=devices // 2, pp=2), Layout(pp=2, tp=devices // 2)):
            inside = all(shape.hops_inside(layout))
            if ("pp", 2, 1 + inside) not in seen:
                seen.add(("pp", 2, 1 + inside))
                yield GroupProbe(layout.dp, 2, layout.tp, "pp", 2, 1 + inside)
