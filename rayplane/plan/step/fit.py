"""A device kind with the figures that a profile gives it: the planner's own formulas, solved for them.

products, attention     efficiency, share of peak and ratios, so that the formula gives on average what kernels took
layers                  launch_us by the shortest, memory bandwidth by the longer ones; what layers then take more or less than
                        their kernels by themselves is put down to products and attention
heads, optimizer        ratios
layers over tp, cp      jitter: what they take beyond compute and communication
collectives, messages   curves; for groups of other shapes, what they say of links and rings
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean

from rayplane.plan.machine.catalog import DeviceKind, device
from rayplane.plan.machine.kernels import FLASH_BACKWARD, MEMORY_EFFICIENCY, share_at
from rayplane.plan.machine.measured_links import curves, rings
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.step import compute
from rayplane.plan.step.compute import Microbatch
from rayplane.plan.step.pieces import Ring, pieces
from rayplane.plan.step.share import parts, share
from rayplane.spec.model import ModelSpec
from rayplane.spec.profile import AttentionTimes, HeadTimes, LayerTimes, OptimizerTimes, ProductTimes, Profile

ROUNDS = 4
"""Launches and bandwidth are solved in turn."""
SHORT_TOKENS = 16
"""Layers of at most so many tokens show launches, longer ones bandwidth."""
BISECTIONS = 40
SPREAD = 4.0
"""How far the bandwidth of a layer's element-wise kernels may be from that of plain ones."""
ONE = ModelSpec(layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, mlp=64, vocab=64)


@cache
def fitted(kind: str, profile: Profile, precision: str, busy: int) -> DeviceKind:
    """With every figure that the profile gives, for a precision and with so many devices of a node at work."""
    layers = [row for row in profile.layers if row.precision == precision]
    out = replace(rings(device(kind), profile), curves=curves(profile), fixed_bytes=profile.fixed_bytes or device(kind).fixed_bytes)
    products = [row for row in profile.products if row.precision == precision]
    out = _products(out, _busiest(products), precision)
    out = _attention(out, [row for row in profile.attention if row.precision == precision])
    if profile.memory:
        rate = fmean(row.bytes / row.seconds for row in profile.memory)
        out = replace(out, hbm_gbytes_s=rate / MEMORY_EFFICIENCY / 1e9)
    out = _layers(out, [row for row in layers if row.tp * row.cp == 1])
    out = _head(out, [row for row in profile.heads if row.precision == precision])
    out = _optimizer(out, profile.optimizer, precision)
    waits = {axis: _waits(out, [row for row in layers if getattr(row, axis) > 1]) for axis in ("tp", "cp")}
    out = replace(out, ratios=replace(out.ratios, cp_jitter=waits["cp"] or 0.0))
    out = replace(out, jitter=out.jitter if waits["tp"] is None else waits["tp"])
    return replace(out, gemm_efficiency=out.gemm_efficiency * _speed(products, busy))


def _busiest(rows: Sequence[ProductTimes]) -> list[ProductTimes]:
    """Those with most devices at work, as everything else is measured."""
    most = max((row.busy for row in rows), default=0)
    return [row for row in rows if row.busy == most]


def _speed(rows: Sequence[ProductTimes], busy: int) -> float:
    """How many times as fast products are with so many devices at work, or the nearest number, as with all."""
    nearest = min((row.busy for row in rows), key=lambda n: (abs(n - busy), -n), default=0)
    took = {(row.tokens, row.rows, row.columns): _total_s(row) for row in rows if row.busy == nearest}
    pairs = [(_total_s(row), took.get((row.tokens, row.rows, row.columns))) for row in _busiest(rows)]
    return fmean([all_s / s for all_s, s in pairs if s] or [1.0])


def _total_s(row: ProductTimes) -> float:
    return row.forward_s + row.input_grad_s + row.weight_grad_s


def _products(kind: DeviceKind, rows: Sequence[ProductTimes], precision: str) -> DeviceKind:
    if not rows:
        return kind
    took = [(row.forward_s, row.input_grad_s, row.weight_grad_s) for row in rows]
    if kind.is_host:
        # Vendors give no peak for one core: what it was seen to do takes its place.
        peak = max(row.flops / min(seconds) for row, seconds in zip(rows, took, strict=True))
        kind = replace(kind, peak_flops={**kind.peak_flops, precision: peak})
    kind = replace(kind, ratios=replace(kind.ratios, products=(1.0, 1.0, 1.0)))

    def computed(efficiency: float) -> list[tuple[float, float, float]]:
        at = replace(kind, gemm_efficiency=efficiency)
        return [_product(at, row) for row in rows]

    def over(efficiency: float) -> float:
        return fmean(sum(c) / sum(t) for c, t in zip(computed(efficiency), took, strict=True))

    efficiency = _solve(over, kind.gemm_efficiency, 1e3)
    ways = zip(zip(*computed(efficiency), strict=True), zip(*took, strict=True), strict=True)
    forward, input_grad, weight_grad = (fmean(t / c for c, t in zip(*way, strict=True)) for way in ways)
    return replace(kind, gemm_efficiency=efficiency, ratios=replace(kind.ratios, products=(forward, input_grad, weight_grad)))


def _product(kind: DeviceKind, row: ProductTimes) -> tuple[float, float, float]:
    of = _work(kind, row.precision, ONE, row.tokens, 1).product_s(row.rows, row.columns)
    return of.forward, of.input_grad, of.weight_grad


def _attention(kind: DeviceKind, rows: Sequence[AttentionTimes]) -> DeviceKind:
    if not rows:
        return kind
    shares: dict[int, list[float]] = {}
    for row in rows:
        model = replace(ONE, hidden=row.heads * row.head_dim, heads=row.heads, kv_heads=row.heads, head_dim=row.head_dim)
        forward_s, _ = compute.attention_s(_work(kind, row.precision, model, row.samples, row.seq_len))
        was = share_at(kind.attention["flash"], row.seq_len)
        shares.setdefault(row.seq_len, []).append(was * forward_s / row.forward_s)
    flash = tuple((seq_len, fmean(of)) for seq_len, of in sorted(shares.items()))
    backward = fmean(row.backward_s / row.forward_s for row in rows) / FLASH_BACKWARD
    return replace(kind, attention={"flash": flash}, ratios=replace(kind.ratios, attention_backward=backward))


def _layers(kind: DeviceKind, rows: Sequence[LayerTimes]) -> DeviceKind:
    short = [row for row in rows if row.samples * row.seq_len <= SHORT_TOKENS]
    long = [row for row in rows if row not in short]
    plain = kind.hbm_gbytes_s
    for _ in range(ROUNDS if rows else 0):
        kind = _launch(kind, short) if short else kind
        if long:
            gbytes_s = _solve(lambda x, k=kind: _over(replace(k, hbm_gbytes_s=x), long), plain, SPREAD)  # type: ignore[misc]
            kind = replace(kind, hbm_gbytes_s=gbytes_s)
    return _faster(kind, _over(kind, long)) if long else kind


def _launch(kind: DeviceKind, rows: Sequence[LayerTimes]) -> DeviceKind:
    most_us = 1e6 * max(row.forward_s + row.backward_s for row in rows)
    low, high = 0.0, most_us
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _over(replace(kind, launch_us=middle), rows) > 1 else (middle, high)
    return replace(kind, launch_us=low)


def _faster(kind: DeviceKind, factor: float) -> DeviceKind:
    """With products and attention so many times as fast."""
    flash = tuple((seq_len, factor * at) for seq_len, at in kind.attention["flash"])
    return replace(kind, gemm_efficiency=factor * kind.gemm_efficiency, attention={**kind.attention, "flash": flash})


def _over(kind: DeviceKind, rows: Sequence[LayerTimes]) -> float:
    """Computed over measured layers, on average."""
    return fmean(compute.layer(_layer(kind, row)).total / (row.forward_s + row.backward_s) for row in rows)


def _head(kind: DeviceKind, rows: Sequence[HeadTimes]) -> DeviceKind:
    if not rows:
        return kind
    models = [replace(ONE, hidden=row.hidden, vocab=row.vocab) for row in rows]
    works = [_work(kind, row.precision, model, row.tokens, 1) for row, model in zip(rows, models, strict=True)]
    ratio = fmean(row.seconds / compute.head(work).total for row, work in zip(rows, works, strict=True))
    return replace(kind, ratios=replace(kind.ratios, head=ratio))


def _optimizer(kind: DeviceKind, rows: Sequence[OptimizerTimes], precision: str) -> DeviceKind:
    if not rows:
        return kind
    ratio = fmean(row.seconds / compute.optimizer_s(kind, row.params, precision, offload=False) for row in rows)
    return replace(kind, ratios=replace(kind.ratios, optimizer=ratio))


def _waits(kind: DeviceKind, rows: Sequence[LayerTimes]) -> float | None:
    """What cut layers take beyond compute and communication, as a share of their compute."""
    still = replace(kind, jitter=0.0)
    shares = []
    for row in rows:
        tp, ring = Group(row.tp, row.tp), Ring(Group(row.cp, row.cp), "ring")
        piece = pieces(_layer(still, row), Network(still.links, still), tp, ring).layer
        shares.append((row.forward_s + row.backward_s - piece.total_s) / piece.compute.total)
    return max(0.0, fmean(shares)) if shares else None


def _layer(kind: DeviceKind, row: LayerTimes) -> Microbatch:
    shape = {name: getattr(row, name) for name in ("hidden", "heads", "kv_heads", "head_dim", "mlp")}
    return _work(kind, row.precision, replace(ONE, **shape), row.samples, row.seq_len, row.tp, row.cp)


def _work(kind: DeviceKind, precision: str, model: ModelSpec, samples: int, seq_len: int, tp: int = 1, cp: int = 1) -> Microbatch:
    return Microbatch(model, share(parts(model), tp), kind, precision, seq_len, samples, cp=cp)


def _solve(over: Callable[[float], float], near: float, spread: float) -> float:
    """Where computed over measured seconds, which fall with x, come to 1; between near / spread and near · spread."""
    low, high = near / spread, near * spread
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if over(middle) > 1 else (low, middle)
    return math.sqrt(low * high)
