"""What would make a layout fit: the smallest change found among the layouts of the same search that do fit.

smaller micro_batch  <  other schedule, vpp, sp, zero, shard or recompute, as few of them as can be  <  more stages or wider tp  <  both
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from operator import ne

from rayplane.plan.step.draft import Outline
from rayplane.plan.step.memory import gigabytes
from rayplane.spec.layout import Layout

OPTIONS = ("schedule", "vpp", "sp", "zero", "shard", "recompute")
"""What may change, beside micro_batch, without moving a device; in the order it is said."""
Options = tuple[str | int | bool, ...]


Degrees = tuple[int, int, int, int]
"""dp, pp, cp, tp."""
SIZES = 32
"""Bits of a micro_batch beside the number of its options."""


@dataclass(slots=True)
class Fitting:
    """The layouts that fit: by degrees, eight bytes for the options and the micro_batch of each."""

    options: list[Options] = field(default_factory=list)
    numbers: dict[Options, int] = field(default_factory=dict)
    by_degrees: dict[Degrees, array[int]] = field(default_factory=dict)

    def add(self, layout: Layout) -> None:
        """One more."""
        options = _options(layout)
        number = self.numbers.setdefault(options, len(self.options))
        if number == len(self.options):
            self.options.append(options)
        self.by_degrees.setdefault(degrees_of(layout), array("Q")).append(number << SIZES | layout.micro_batch)

    def remedy(self, layout: Layout) -> str | None:
        """The smallest change; None when nothing fits."""
        if packed := self.by_degrees.get(degrees_of(layout)):
            own: dict[Options, list[int]] = {}
            for entry in packed:
                own.setdefault(self.options[entry >> SIZES], []).append(entry & ((1 << SIZES) - 1))
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


def degrees_of(layout: Layout) -> Degrees:
    """Of a layout."""
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


def too_large(layout: Layout, memory_bytes: int, device_bytes: int, fitting: Fitting) -> str:
    """By how much a layout does not fit, and what would."""
    remedy = fitting.remedy(layout)
    text = f"does not fit: {gigabytes(memory_bytes)} of {gigabytes(device_bytes)} per device"
    return f"{text}; {remedy} would fit" if remedy else text


def shortage(outline: Outline) -> str:
    """What a layout lacks, and which term of its memory is to blame."""
    fullest, room_bytes = outline.fullest, outline.room_bytes
    terms = fullest.terms()
    largest = max(terms, key=lambda name: terms[name])
    return (
        f"{outline.layout} needs {gigabytes(fullest.total)} per device and a device has {gigabytes(room_bytes)}: "
        f"{gigabytes(fullest.total - room_bytes)} missing, most of it {largest} ({gigabytes(terms[largest])})"
    )
