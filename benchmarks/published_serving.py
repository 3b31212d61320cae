"""Published serving runs beside the planner's predictions: python benchmarks/published_serving.py --rows FILE [--by source] [--json]

ttft     mean time to the first token     tpot     mean time between tokens     tokens   output tokens per second of all replicas

A row that cannot be expressed, or that the planner says does not fit, counts as a failure and is printed with its reason. `error` is
the mean over priced rows of |predicted / measured - 1|, `bias` the median of predicted / measured - 1, both in percent.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from published_rows import CannotExpressError
from published_scores import positive
from served_rows import Case, Row, case_of

from rayplane.errors import SpecError
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.kv import Room, room
from rayplane.plan.serving.load import Load, mean, play, saturating
from rayplane.plan.serving.serve import Replica

METRICS = ("ttft", "tpot", "tokens")
FIGURES = ("mape", "median", "p90", "bias", "spearman")
SATURATED_ROUNDS = 4
"""Enough for a saturated replica, of which only the rate counts."""
GROUPS: dict[str, Callable[[Row], str]] = {
    "source": lambda row: row["source"]["title"],
    "model": lambda row: row["model"],
    "gpu": lambda row: row["hardware"]["gpu"],
    "engine": lambda row: f"{row.get('backend') or row['source']['title']} {row.get('backend_version') or ''}",
    "layout": lambda row: " ".join(f"{axis}{n}" for axis, n in row["layout"].items()),
}


@dataclass(frozen=True, slots=True)
class Priced:
    """Predicted over measured, by metric."""

    row: Row
    ratios: dict[str, float]


@dataclass(frozen=True, slots=True)
class Failed:
    """A row without a prediction."""

    row: Row
    reason: str


def price(row: Row) -> Priced | Failed:
    """The planner's word on a row."""
    try:
        case = case_of(row)
        replica = Replica(case.served, case.cut, Network(case.kind.links, case.kind), island_of(case), case.engine)
        free = room(replica, case.memory_bytes)
        longest = (case.prompt + case.output) * (1 + case.spread)
        if longest > free.tokens:
            return Failed(row, free.shortage or f"does not fit: the cache holds {free.tokens} tokens, a sequence has {longest:.0f}")
        predicted = predict(case, replica, free)
        known = measured(row)
        if not known:
            return Failed(row, "none of time to first token, time per token and tokens per second was measured")
        return Priced(row, {m: predicted[m] / value for m, value in known.items() if m in predicted})
    except (CannotExpressError, SpecError) as error:
        return Failed(row, str(error))
    except Exception as error:  # whatever a row holds, it is one that is not priced
        return Failed(row, f"{type(error).__name__}: {error}")


def predict(case: Case, replica: Replica, free: Room) -> dict[str, float]:
    """Every metric, in seconds and tokens per second."""
    if case.output == 1:
        load = Load(case.prompt, 1, concurrency=1, requests=1)
        alone = replica.counts(1, 0, 0).total + replica.cache_s(1, case.prompt)
        return {"ttft": mean(play(replica, free, load).ttft_s), "tpot": alone}
    at_once = case.concurrency or saturating(replica, free, case.prompt, case.output)
    load = Load(case.prompt, case.output, at_once, requests=0 if case.concurrency else SATURATED_ROUNDS * at_once, spread=case.spread)
    played = play(replica, free, load)
    return {"ttft": mean(played.ttft_s), "tpot": mean(played.tpot_s), "tokens": case.replicas * played.tokens_s}


def island_of(case: Case) -> int:
    """Devices that NVLink or a host joins."""
    return 72 if case.kind.name in ("gb200", "gb300") else 8


def measured(row: Row) -> dict[str, float]:
    """What the row says, in seconds and tokens per second."""
    said = row["measured"]
    out: dict[str, float] = {}
    if ttft := said.get("ttft_ms"):
        out["ttft"] = positive(ttft, "ttft_ms") / 1e3
    if tpot := said.get("tpot_ms") or said.get("itl_ms") or said.get("ttit_ms") or row.get("ttit_ms"):
        out["tpot"] = positive(tpot, "tpot_ms") / 1e3
    if tokens := said.get("output_tokens_per_s_total"):
        out["tokens"] = positive(tokens, "output_tokens_per_s_total")
    elif tokens := said.get("output_tokens_per_s_per_gpu"):
        out["tokens"] = positive(tokens, "output_tokens_per_s_per_gpu") * row["hardware"]["n_gpus"]
    return out


def statistics(ratios: Iterable[float], rows: Iterable[tuple[float, float]]) -> dict[str, float | None]:
    """Error, its median and 90th percentile and bias in percent, and how well the order holds, of three rows or more."""
    off = np.abs(np.array(list(ratios)) - 1)
    pairs = np.array(list(rows))
    ranks = np.argsort(np.argsort(pairs, axis=0), axis=0)
    order = round(float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1]), 4) if len(off) > 2 else None
    bias = np.median(pairs[:, 0] / pairs[:, 1]) - 1
    figures = {"mape": off.mean(), "median": np.median(off), "p90": np.quantile(off, 0.9), "bias": bias}
    return {**{name: round(100 * float(value), 2) for name, value in figures.items()}, "spearman": order}


def summary(priced: list[Priced], rows: int) -> dict[str, Any]:
    """What `--json` prints."""
    out: dict[str, Any] = {"rows": rows, "priced": len(priced)}
    for metric in METRICS:
        of = [(p.ratios[metric], measured(p.row)[metric]) for p in priced if metric in p.ratios]
        found = (
            statistics([ratio for ratio, _ in of], [(ratio * known, known) for ratio, known in of]) if of else dict.fromkeys(FIGURES)
        )
        out |= {f"{metric}_{name}": value for name, value in found.items()} | {f"{metric}_rows": len(of)}
    return out


def run_of(row: Row) -> str:
    """A row in words, whatever it holds."""
    try:
        return f"{row['model']} on {row['hardware']['n_gpus']} {row['hardware']['gpu']}"
    except (KeyError, TypeError):
        return repr(row)[:80]


def table(priced: list[Priced], group: Callable[[Row], str]) -> None:
    """One line for each group."""
    groups: dict[str, list[Priced]] = defaultdict(list)
    for p in priced:
        groups[group(p.row)].append(p)
    print(f"{'':56} {'rows':>5}" + "".join(f"{m + ' error':>14}{'bias':>7}" for m in METRICS))
    for name, members in sorted(groups.items()):
        found = summary(members, len(members))
        cells = [f"{found[f'{m}_mape']:13.1f}%{found[f'{m}_bias']:+6.0f}%" if found[f"{m}_rows"] else " " * 21 for m in METRICS]
        print(f"{name[:56]:56} {len(members):5}{''.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a JSON list of rows")
    parser.add_argument("--by", choices=[*GROUPS], default="source")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    rows: list[Row] = json.loads(args.rows.read_text(encoding="utf-8"))
    answers = [price(row) for row in rows]
    priced = [a for a in answers if isinstance(a, Priced)]
    table(priced, GROUPS[args.by])
    for a in answers:
        if isinstance(a, Failed):
            print(f"not priced: {run_of(a.row)}: {a.reason}")
    found = summary(priced, len(rows))
    print(f"\n{found['priced']} of {found['rows']} rows priced")
    for metric in METRICS:
        if found[f"{metric}_rows"]:
            said = ", ".join(f"{name} {found[f'{metric}_{name}']}" for name in FIGURES)
            print(f"{metric:7} {said}")
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
