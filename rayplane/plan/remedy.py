"""What would make a layout fit: the smallest change found among the layouts of the same search that do fit.

smaller micro_batch  <  other schedule, vpp, sp, zero, shard or recompute, as few of them as can be  <  more stages or wider tp  <  both
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import ne

from rayplane.plan.draft import Outline
from rayplane.plan.memory import gigabytes
from rayplane.spec.layout import Layout

OPTIONS = ("schedule", "vpp", "sp", "zero", "shard", "recompute")
"""What may change, beside micro_batch, without moving a device; in the order it is said."""
Options = tuple[str | int | bool, ...]


@dataclass(frozen=True, slots=True)
class Fitting:
    """The layouts that fit: by (dp, pp, cp, tp) and options, their micro_batches."""

    by_degrees: dict[tuple[int, int, int, int], dict[Options, list[int]]]

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Fitting:
        """Index some layouts."""
        by_degrees: dict[tuple[int, int, int, int], dict[Options, list[int]]] = {}
        for layout in layouts:
            own = by_degrees.setdefault(_degrees(layout), {})
            own.setdefault(_options(layout), []).append(layout.micro_batch)
        return cls(by_degrees)

    def remedy(self, layout: Layout) -> str | None:
        """The smallest change; None when nothing fits."""
        if own := self.by_degrees.get(_degrees(layout)):
            return _change(layout, own)
        degrees = {(pp, tp) for _, pp, cp, tp in self.by_degrees if cp == layout.cp}
        deeper = [pp for pp, tp in degrees if tp == layout.tp and pp > layout.pp]
        wider = [tp for pp, tp in degrees if pp == layout.pp and tp > layout.tp]
        if deeper or wider:
            return " or ".join(f"{axis} {min(found)}" for axis, found in (("pp", deeper), ("tp", wider)) if found)
        if not degrees:
            return None
        pp, tp = min(degrees, key=lambda d: (d[0] * d[1], d))
        return f"pp {pp} with tp {tp}"


def _degrees(layout: Layout) -> tuple[int, int, int, int]:
    return layout.dp, layout.pp, layout.cp, layout.tp


def _options(layout: Layout) -> Options:
    return tuple(getattr(layout, name) for name in OPTIONS)


def _change(layout: Layout, own: dict[Options, list[int]]) -> str:
    """From a layout to one of the same degrees that fits."""
    now = _options(layout)
    if smaller := [n for n in own.get(now, ()) if n < layout.micro_batch]:
        return f"micro_batch {max(smaller)}"

    best = min(own, key=lambda options: sum(map(ne, options, now)))
    said = [_said(name, value) for name, value, old in zip(OPTIONS, best, now, strict=True) if value != old]
    if layout.micro_batch not in own[best]:
        said.append(f"micro_batch {max(own[best])}")
    return ", ".join(said)


def _said(name: str, value: str | int | bool) -> str:
    return name if value is True else f"no {name}" if value is False else f"{name} {value}"


def too_large(outline: Outline, device_bytes: int, fitting: Fitting) -> str:
    """By how much a layout does not fit, and what would."""
    remedy = fitting.remedy(outline.layout)
    text = f"does not fit: {gigabytes(outline.memory_bytes)} of {gigabytes(device_bytes)} per device"
    return f"{text}; {remedy} would fit" if remedy else text


def shortage(outline: Outline, device_bytes: int, may_offload: bool) -> str:
    """What a layout lacks, which term of its memory is to blame, and whether the host's memory would do."""
    terms = outline.fullest.terms()
    largest = max(terms, key=lambda name: terms[name])
    text = (
        f"{outline.layout} needs {gigabytes(outline.memory_bytes)} per device and a device has {gigabytes(device_bytes)}: "
        f"{gigabytes(outline.memory_bytes - device_bytes)} missing, most of it {largest} ({gigabytes(terms[largest])})"
    )
    away = may_offload and outline.memory_bytes - terms["optimizer"] <= device_bytes
    return f"{text}; it would fit with train.optimizer.offload: true" if away else text
