"""Every layout that was refused or lost, and why: some twenty bytes for each, and words only for those that are looked at.

degrees    dp pp cp tp                  where no layout of these degrees is possible; the reason is found again when it is asked for
records    numbers of degrees, options, boundaries and winner; micro_batch; what was found: bytes, or seconds
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar, overload

from rayplane.plan.choice.candidates import Space, refusal
from rayplane.plan.choice.remedy import Degrees, Fitting, degrees_of, too_large
from rayplane.plan.step.memory import TIGHT
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Rejected

T = TypeVar("T")
COLUMNS = 7
OPTIONS = ("schedule", "vpp", "sp", "zero", "recompute", "cp_method")


class Why(IntEnum):
    """What a record says of its layout."""

    LARGE = 0
    TIGHT = 1
    SLOWER = 2
    NO_FASTER = 3
    """Slower by a lower bound."""


@dataclass(slots=True)
class Numbered(Generic[T]):
    """Values by number, each kept once."""

    values: list[T] = field(default_factory=list)
    _numbers: dict[T, int] = field(default_factory=dict)

    def number(self, value: T) -> int:
        """Of a value, which is kept if it is new."""
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


def _numbers() -> array[int]:
    return array("I")


@dataclass(slots=True)
class Records:
    """Layouts with what was found of each, in columns."""

    device_bytes: int
    degrees: Numbered[Degrees] = field(default_factory=Numbered)
    options: Numbered[tuple[Any, ...]] = field(default_factory=Numbered)
    boundaries: Numbered[tuple[int, ...]] = field(default_factory=Numbered)
    winners: Numbered[tuple[Layout, float]] = field(default_factory=Numbered)
    numbers: array[int] = field(default_factory=_numbers)
    """Of a record COLUMNS: degrees, options, boundaries, micro_batch, shard, recompute_layers, winner with reason."""
    found: array[float] = field(default_factory=lambda: array("d"))
    """Bytes of what is too large, else seconds."""
    fitting: Fitting = field(default_factory=Fitting)

    def add(self, layout: Layout, why: Why, found: float, winner: tuple[Layout, float] | None = None) -> None:
        """A layout; `winner` and its seconds unless it is too large."""
        degrees, options = self.degrees.number(degrees_of(layout)), self.options.number(_options(layout))
        against = len(Why) * self.winners.number(winner) if winner else 0
        own = (self.boundaries.number(layout.boundaries), layout.micro_batch, layout.shard, layout.recompute_layers)
        self.numbers.extend((degrees, options, *own, against + why))
        self.found.append(found)

    def __len__(self) -> int:
        return len(self.found)

    def rejected(self, index: int) -> Rejected:
        """In words."""
        degrees, options, cut, micro_batch, shard, layers, reason = self.numbers[COLUMNS * index : COLUMNS * (index + 1)]
        named: dict[str, Any] = dict(zip(OPTIONS, self.options.values[options], strict=True))
        dp, pp, cp, tp = self.degrees.values[degrees]
        own: dict[str, Any] = {
            "micro_batch": micro_batch,
            "shard": shard,
            "recompute_layers": layers,
            "boundaries": self.boundaries.values[cut],
        }
        layout = Layout(dp, pp, cp, tp, **named, **own)
        winner, why = divmod(reason, len(Why))
        return Rejected(layout, self._reason(layout, Why(why), self.found[index], winner))

    def _reason(self, layout: Layout, why: Why, found: float, winner: int) -> str:
        if why is Why.LARGE:
            return too_large(layout, int(found), self.device_bytes, self.fitting)
        best, best_s = self.winners.values[winner]
        if why is Why.TIGHT:
            return f"tight: above {TIGHT:.0%} of the memory of a device, where {best} fits"
        at_least = "at least " if why is Why.NO_FASTER else ""
        return f"slower: {at_least}{found:.4g} s a step, {best} takes {best_s:.4g} s"


def _options(layout: Layout) -> tuple[Any, ...]:
    return tuple(getattr(layout, name) for name in OPTIONS)


@dataclass(frozen=True, slots=True, eq=False)
class Refused(Sequence[Rejected]):
    """First the degrees that are impossible, then the records."""

    space: Space
    impossible: array[int]
    """Four degrees each."""
    records: tuple[Records, ...]

    def __len__(self) -> int:
        return len(self.impossible) // 4 + sum(map(len, self.records))

    @overload
    def __getitem__(self, index: int) -> Rejected: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rejected]: ...
    def __getitem__(self, index: int | slice) -> Rejected | Sequence[Rejected]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        at = range(len(self))[index]
        if at < len(self.impossible) // 4:
            dp, pp, cp, tp = self.impossible[4 * at : 4 * at + 4]
            layout = Layout(dp, pp, cp, tp)
            return Rejected(layout, refusal(self.space, layout) or "")
        at -= len(self.impossible) // 4
        for records in self.records:
            if at < len(records):
                return records.rejected(at)
            at -= len(records)
        raise IndexError(index)

    def faster_than(self, step_s: float) -> int:
        """How many of those that fit take less, or by their bound may take less."""
        columns = ((records.numbers[COLUMNS - 1 :: COLUMNS], records.found) for records in self.records)
        return sum(
            reason % len(Why) != Why.LARGE and found < step_s
            for reasons, seconds in columns
            for reason, found in zip(reasons, seconds, strict=True)
        )

    def __iter__(self) -> Iterator[Rejected]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
