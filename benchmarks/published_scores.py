"""How near predictions are to measurements, and whether they put layouts in the right order.

error     predicted / measured - 1                        MAPE, median, 90th percentile of its size; bias is its mean
tau       Kendall's, over the pairs of a group            1 same order, -1 reversed
regret    how much longer the layout with the least predicted time took than the best of its group
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

MIN_GROUP = 5
ERRORS = ("mape", "median", "p90", "bias", "spearman", "macro_mape")
CHOICES = ("tau", "regret_mean", "regret_max")


@dataclass(frozen=True, slots=True)
class Pair:
    """A prediction beside its measurement, and the group of layouts that it competes with."""

    id: str
    source: str
    group: tuple[object, ...]
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1


def errors(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """In percent, but for the correlation of ranks; of nothing, None."""
    sizes = sorted(abs(p.error) for p in pairs)
    if not sizes:
        return dict.fromkeys(ERRORS)
    return {
        "mape": 100 * statistics.mean(sizes),
        "median": 100 * statistics.median(sizes),
        "p90": 100 * sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        "bias": 100 * statistics.mean(p.error for p in pairs),
        "spearman": spearman([p.predicted for p in pairs], [p.measured for p in pairs]),
        "macro_mape": statistics.mean(100 * statistics.mean(abs(p.error) for p in own) for own in by_source(pairs).values()),
    }


def choices(pairs: Iterable[Pair]) -> dict[str, float | None]:
    """Over groups of at least MIN_GROUP layouts: mean tau, and the regret of the planner's choice in percent; without any, None."""
    groups: dict[tuple[object, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    large = [own for own in groups.values() if len(own) >= MIN_GROUP]
    if not large:
        return {"groups": 0, **dict.fromkeys(CHOICES)}
    regrets = [100 * (min(own, key=lambda p: p.predicted).measured / min(p.measured for p in own) - 1) for own in large]
    return {
        "groups": len(large),
        "tau": statistics.mean(kendall(own) for own in large),
        "regret_mean": statistics.mean(regrets),
        "regret_max": max(regrets),
    }


def positive(value: object, name: str) -> float:
    """What a row says was measured. Raises ValueError where that is no measurement."""
    number = float(value) if isinstance(value, int | float) else math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}, which nothing measures")
    return number


def name_of(row: object) -> str:
    """Of a row, whatever it holds."""
    return str(row.get("id") or "a row without an id") if isinstance(row, dict) else repr(row)[:40]


def show_failed(failed: Sequence[tuple[str, str]]) -> None:
    """Every row that is not priced, after its reason; the commonest first."""
    rows: dict[str, list[str]] = defaultdict(list)
    for name, reason in failed:
        rows[reason].append(name)
    for reason, names in sorted(rows.items(), key=lambda item: -len(item[1])):
        print(f"not priced, {len(names)} rows: {reason} ({', '.join(names)})")


def by_source(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """In order of appearance."""
    out: dict[str, list[Pair]] = {}
    for pair in pairs:
        out.setdefault(pair.source, []).append(pair)
    return out


def kendall(pairs: Sequence[Pair]) -> float:
    """Concordant less discordant pairs, over those that measurements tell apart."""
    signs = [_sign(a.predicted - b.predicted) * _sign(a.measured - b.measured) for a, b in combinations(pairs, 2)]
    told = [s for s, (a, b) in zip(signs, combinations(pairs, 2), strict=True) if a.measured != b.measured]
    return sum(told) / len(told) if told else 0.0


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of ranks; equal values share theirs."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    first = {v: i for i, v in reversed(list(enumerate(sorted(values))))}
    count = {v: values.count(v) for v in first}
    return [first[v] + (count[v] - 1) / 2 for v in values]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
