"""Predicted beside published memory: python benchmarks/published_memory.py --rows FILE [--by source] [--worst N] [--json]

peaks     error of the prediction; what torch reports has neither the runtime's own memory nor what is lost between tensors, what
          drivers report, as until 2022, has both
labels    a run fitted its device, or ran out of memory: whether the planner says so
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from published_rows import CannotExpressError, Row, case_of
from published_scores import Pair, by_source, errors, name_of, positive, show_failed

from rayplane.errors import RayplaneError
from rayplane.plan.step.train import Pricer

BY_DRIVER = 2022
NOT_MEASURED = ("other than memory", "formula")
"""Kinds of rows that say nothing of memory."""


@dataclass(frozen=True, slots=True)
class Label:
    """Whether a run fitted, and whether the planner says so."""

    id: str
    needs_gb: float
    fits: bool
    said: bool


def compare(rows: list[Row]) -> tuple[list[Pair], list[Label], list[tuple[str, str]]]:
    """Peaks, labels, and (id, reason) of the rows that are not priced."""
    peaks: list[Pair] = []
    labels: list[Label] = []
    failed = []
    for row in rows:
        try:
            judged = _judged(row)
        except (CannotExpressError, RayplaneError) as error:
            failed.append((name_of(row), str(error)))
        except Exception as error:  # whatever a row holds, it is one that is not priced
            failed.append((name_of(row), f"{type(error).__name__}: {error}"))
        else:
            (peaks if isinstance(judged, Pair) else labels).append(judged)
    return peaks, labels, failed


def _judged(row: Row) -> Pair | Label:
    """A peak, or a label, beside the planner's word on it."""
    case, kind = case_of(row), row["kind"]
    pricer = Pricer(case.model, case.workload, case.cluster, case.practice)
    outline = pricer.counted(pricer.outline(case.layouts[0]))
    needs = outline.memory_bytes
    if kind.startswith("peak"):
        own = outline.fullest.fixed if case.year > BY_DRIVER else 0
        return Pair(case.id, case.source, (), (needs - own) / 1e9, positive(row["memory_gb"], "memory_gb"))
    if "(fits)" in kind or "(OOM)" in kind:
        return Label(case.id, needs / 1e9, "(fits)" in kind, needs <= pricer.device_bytes)
    raise CannotExpressError(f"kind '{kind}' is neither a peak nor a label")


def summary(peaks: list[Pair], labels: list[Label], num_rows: int) -> dict[str, Any]:
    """In percent but for the counts."""
    fits, oom = [x for x in labels if x.fits], [x for x in labels if not x.fits]
    figures = {
        "peak_mape": errors(peaks)["mape"],
        "label_accuracy": _share([x.said == x.fits for x in labels]),
        "oom_caught": _share([not x.said for x in oom]),
        "fits_refused": _share([not x.said for x in fits]),
    }
    counts = {"rows": num_rows, "priced": len(peaks) + len(labels), "peaks": len(peaks), "labels": len(labels)}
    return {**counts, **{name: value if value is None else round(value, 3) for name, value in figures.items()}}


def _share(of: list[bool]) -> float | None:
    return 100 * sum(of) / len(of) if of else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a JSON file of published peaks and labels")
    parser.add_argument("--by", choices=["source"], help="also the peaks of each source by itself")
    parser.add_argument("--worst", type=int, default=0, help="also so many peaks and labels that are furthest off")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text())
    said = [row for row in rows if not (isinstance(row, dict) and any(kind in str(row.get("kind")) for kind in NOT_MEASURED))]
    print(f"{len(rows) - len(said)} of {len(rows)} rows are no measurement of memory")
    peaks, labels, failed = compare(said)
    show_failed(failed)
    if args.by:
        for source, own in by_source(peaks).items():
            print(f"{source[:60]:60} {len(own):4} peaks  MAPE {errors(own)['mape']:5.1f}%  bias {errors(own)['bias']:+6.1f}%")
    for pair in sorted(peaks, key=lambda p: -abs(p.error))[: args.worst]:
        print(f"{pair.id[:76]:76} measured {pair.measured:6.1f} GB  predicted {pair.predicted:6.1f} GB  {100 * pair.error:+6.1f}%")
    wrong = sorted((x for x in labels if x.said != x.fits), key=lambda x: x.needs_gb)
    for label in wrong[: args.worst]:
        print(f"{label.id[:76]:76} {'fits' if label.fits else 'OOM'}  predicted {label.needs_gb:6.1f} GB")
    answer = summary(peaks, labels, len(said))
    print("  ".join(f"{name} {value}" for name, value in answer.items()))
    if args.json:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
