"""Published serving runs beside the planner's predictions: python benchmarks/published_serving.py --rows FILE [--by source] [--json]

ttft     mean time to the first token     tpot     mean time between tokens     tokens   output tokens per second of all replicas

A row that cannot be expressed, or that the planner says does not fit, counts as a failure and is printed with its reason. `error` is
the mean over priced rows of |predicted / measured - 1|; `bias` the median of predicted / measured - 1.
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
from served_rows import Case, Row, case_of

from rayplane.errors import SpecError
from rayplane.plan.kv import Room, room
from rayplane.plan.load import Load, mean, play, saturating
from rayplane.plan.network import Network
from rayplane.plan.serve import Replica

METRICS = ("ttft", "tpot", "tokens")
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
    except (CannotExpressError, SpecError) as error:
        return Failed(row, str(error))
    known = measured(row)
    return Priced(row, {m: predicted[m] / known[m] for m in METRICS if m in known})


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
        out["ttft"] = ttft / 1e3
    if tpot := said.get("tpot_ms") or said.get("itl_ms") or said.get("ttit_ms") or row.get("ttit_ms"):
        out["tpot"] = tpot / 1e3
    if tokens := said.get("output_tokens_per_s_total"):
        out["tokens"] = float(tokens)
    elif tokens := said.get("output_tokens_per_s_per_gpu"):
        out["tokens"] = float(tokens) * row["hardware"]["n_gpus"]
    return out


def statistics(ratios: Iterable[float], rows: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Error, its median and 90th percentile, bias, and how well the order holds."""
    off = np.abs(np.array(list(ratios)) - 1)
    pairs = np.array(list(rows))
    ranks = np.argsort(np.argsort(pairs, axis=0), axis=0)
    order = float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1]) if len(off) > 2 else float("nan")
    bias = float(np.median(pairs[:, 0] / pairs[:, 1])) - 1
    figures = {"mape": off.mean(), "median": np.median(off), "p90": np.quantile(off, 0.9), "bias": bias, "spearman": order}
    return {name: round(float(value), 4) for name, value in figures.items()}


def summary(priced: list[Priced], rows: int) -> dict[str, Any]:
    """What `--json` prints."""
    out: dict[str, Any] = {"rows": rows, "priced": len(priced)}
    for metric in METRICS:
        of = [(p.ratios[metric], measured(p.row)[metric]) for p in priced if metric in p.ratios]
        if of:
            found = statistics([ratio for ratio, _ in of], [(ratio * known, known) for ratio, known in of])
            out |= {f"{metric}_{name}": value for name, value in found.items()} | {f"{metric}_rows": len(of)}
    return out


def table(priced: list[Priced], group: Callable[[Row], str]) -> None:
    """One line for each group."""
    groups: dict[str, list[Priced]] = defaultdict(list)
    for p in priced:
        groups[group(p.row)].append(p)
    print(f"{'':56} {'rows':>5}" + "".join(f"{m + ' error':>14}{'bias':>7}" for m in METRICS))
    for name, members in sorted(groups.items()):
        found = summary(members, len(members))
        cells = [f"{found[f'{m}_mape']:14.1%}{found[f'{m}_bias']:+7.0%}" if f"{m}_mape" in found else " " * 21 for m in METRICS]
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
            print(f"not priced: {a.row['model']} on {a.row['hardware']['n_gpus']} {a.row['hardware']['gpu']}: {a.reason}")
    found = summary(priced, len(rows))
    print(f"\n{found['priced']} of {found['rows']} rows priced")
    for metric in METRICS:
        if f"{metric}_mape" in found:
            said = ", ".join(f"{name} {found[f'{metric}_{name}']:.3g}" for name in ("mape", "median", "p90", "bias", "spearman"))
            print(f"{metric:7} {said}")
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
