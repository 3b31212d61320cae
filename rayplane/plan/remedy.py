"""What would make a layout fit: the smallest change found among the layouts of the same search that do fit.

smaller micro_batch  <  other schedule  <  more stages or wider tp  <  both
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayplane.plan.draft import Outline
from rayplane.plan.memory import gigabytes
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Fitting:
    """(schedule, micro_batch) of the layouts that fit, by (pp, tp)."""

    by_degrees: dict[tuple[int, int], list[tuple[str, int]]]

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Fitting:
        """Index some layouts."""
        by_degrees: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for layout in layouts:
            by_degrees.setdefault((layout.pp, layout.tp), []).append((layout.schedule, layout.micro_batch))
        return cls(by_degrees)

    def remedy(self, layout: Layout) -> str | None:
        """The smallest change; None when nothing fits."""
        own = self.by_degrees.get((layout.pp, layout.tp), [])
        smaller = [n for schedule, n in own if schedule == layout.schedule and n < layout.micro_batch]
        if smaller:
            return f"micro_batch {max(smaller)}"
        if own:
            schedule, micro_batch = max(own, key=lambda o: (o[1], o[0]))
            return f"schedule {schedule} with micro_batch {micro_batch}"
        deeper = [pp for pp, tp in self.by_degrees if tp == layout.tp and pp > layout.pp]
        wider = [tp for pp, tp in self.by_degrees if pp == layout.pp and tp > layout.tp]
        if deeper or wider:
            return " or ".join(f"{axis} {min(degrees)}" for axis, degrees in (("pp", deeper), ("tp", wider)) if degrees)
        if not self.by_degrees:
            return None
        pp, tp = min(self.by_degrees, key=lambda d: (d[0] * d[1], d))
        return f"pp {pp} with tp {tp}"


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
