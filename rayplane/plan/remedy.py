"""What would make a layout fit: the smallest change found among the layouts of the same search that do fit.

smaller micro_batch  <  other schedule, vpp, sp, zero or recompute, as few of them as can be  <  more stages or wider tp  <  both
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayplane.plan.draft import Outline
from rayplane.plan.memory import gigabytes
from rayplane.spec.layout import Layout


OPTIONS = ("schedule", "vpp", "sp", "zero", "recompute", "micro_batch")
"""What may change without moving a device, in the order it is said."""
Options = tuple[str | int | bool, ...]


@dataclass(frozen=True, slots=True)
class Fitting:
    """Options of the layouts that fit, by (dp, pp, tp)."""

    by_degrees: dict[tuple[int, int, int], list[Options]]

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Fitting:
        """Index some layouts."""
        by_degrees: dict[tuple[int, int, int], list[Options]] = {}
        for layout in layouts:
            by_degrees.setdefault((layout.dp, layout.pp, layout.tp), []).append(_options(layout))
        return cls(by_degrees)

    def remedy(self, layout: Layout) -> str | None:
        """The smallest change; None when nothing fits."""
        if own := self.by_degrees.get((layout.dp, layout.pp, layout.tp)):
            now = _options(layout)
            changes = [[(n, o) for n, o, w in zip(OPTIONS, options, now, strict=True) if o != w] for options in own]
            smallest = min(changes, key=lambda c: (len(c), [n != "micro_batch" for n, _ in c], str(c)))
            return ", ".join(_said(name, value) for name, value in smallest)
        degrees = {(pp, tp) for _, pp, tp in self.by_degrees}
        deeper = [pp for pp, tp in degrees if tp == layout.tp and pp > layout.pp]
        wider = [tp for pp, tp in degrees if pp == layout.pp and tp > layout.tp]
        if deeper or wider:
            return " or ".join(f"{axis} {min(found)}" for axis, found in (("pp", deeper), ("tp", wider)) if found)
        if not degrees:
            return None
        pp, tp = min(degrees, key=lambda d: (d[0] * d[1], d))
        return f"pp {pp} with tp {tp}"


def _options(layout: Layout) -> Options:
    return layout.schedule, layout.vpp, layout.sp, layout.zero, layout.recompute, layout.micro_batch


def _said(name: str, value: str | int | bool) -> str:
    return name if value is True else f"no {name}" if value is False else f"{name} {value}"


def too_large(outline: Outline, device_bytes: int, fitting: Fitting) -> str:
    """By how much a layout does not fit, and what would."""
    remedy = fitting.remedy(outline.layout)
    text = f"does not fit: {gigabytes(outline.memory_bytes)} of {gigabytes(device_bytes)} per device"
    return f"{text}; {remedy} would fit" if remedy else text


def shortage(outline: Outline, device_bytes: int) -> str:
    """What a layout lacks, and which term of its memory is to blame."""
    terms = outline.fullest.terms()
    largest = max(terms, key=lambda name: terms[name])
    return (
        f"{outline.layout} needs {gigabytes(outline.memory_bytes)} per device and a device has {gigabytes(device_bytes)}: "
        f"{gigabytes(outline.memory_bytes - device_bytes)} missing, most of it {largest} ({gigabytes(terms[largest])})"
    )
