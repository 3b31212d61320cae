"""Predicted beside published step times: python benchmarks/published_runs.py --rows FILE [--core] [--by source] [--worst N] [--json]

A row that cannot be put in the planner's words, or has no time to compare, counts as not priced and is printed with its reason. Where a
row leaves a choice open (microbatch, recomputation), the fastest that fits the device is meant.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from published_rows import CannotExpressError, Case, Row, case_of
from published_scores import Pair, by_source, choices, errors, name_of, positive, show_failed

from rayplane.errors import RayplaneError
from rayplane.plan.step.order import Orders
from rayplane.plan.step.train import Pricer
from rayplane.spec.plan import Estimate


def estimate_of(case: Case, orders: Orders) -> Estimate:
    """Of the layout that is meant."""
    pricer = Pricer(case.model, case.workload, case.cluster, case.practice)
    pricer.orders = orders
    outlines = [pricer.counted(pricer.outline(layout)) for layout in case.layouts]
    fitting = [o for o in outlines if o.memory_bytes <= pricer.device_bytes]
    drafts = [pricer.draft(o) for o in fitting or [min(outlines, key=lambda o: o.memory_bytes)]]
    return pricer.price(min(drafts, key=lambda draft: draft.step_s(orders)))


def seconds_of(row: Row, case: Case) -> float:
    """The measured step; from FLOP/s where the row has no time."""
    measured = row["measured"]
    if measured.get("step_time_s"):
        return positive(measured["step_time_s"], "step_time_s")
    if measured.get("model_tflops_per_gpu"):
        tflops = positive(measured["model_tflops_per_gpu"], "model_tflops_per_gpu")
        # Where nothing else is said, attention counts as if nothing were masked.
        model, seq_len = case.model, case.workload.seq_len
        attention = 12.0 * model.layers * model.heads * model.head_dim * model.mean_keys(seq_len)
        flops = (model.flops_per_token(seq_len) + attention) * case.workload.global_batch * seq_len
        return flops / (tflops * 1e12 * case.cluster.num_devices)
    raise CannotExpressError("neither step time nor FLOP/s was measured")


def compare(rows: list[Row]) -> tuple[list[Pair], list[tuple[str, str]]]:
    """Pairs, and (id, reason) of the rows that are not priced."""
    pairs, failed, orders = [], [], Orders()
    for row in rows:
        try:
            case = case_of(row)
            measured_s = seconds_of(row, case)
            predicted_s = estimate_of(case, orders).step_s
        except (CannotExpressError, RayplaneError) as error:
            failed.append((name_of(row), str(error)))
            continue
        except Exception as error:  # whatever a row holds, it is one that is not priced
            failed.append((name_of(row), f"{type(error).__name__}: {error}"))
            continue
        group = (case.source, case.model, case.workload, case.cluster.num_devices, case.cluster.nodes[0].kind, case.practice)
        pairs.append(Pair(case.id, case.source, group, predicted_s, measured_s))
    return pairs, failed


def summary(pairs: list[Pair], num_rows: int) -> dict[str, Any]:
    """Rounded, in the order it is printed."""
    figures = {**errors(pairs), **choices(pairs)}
    return {"rows": num_rows, "priced": len(pairs), **{k: v if v is None else round(v, 3) for k, v in figures.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a JSON file of published runs")
    parser.add_argument("--core", action="store_true", help="only rows that are marked core")
    parser.add_argument("--by", choices=["source"], help="also each source by itself")
    parser.add_argument("--worst", type=int, default=0, help="also so many rows with the largest errors")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    rows = [row for row in json.loads(args.rows.read_text()) if not args.core or row.get("core")]
    pairs, failed = compare(rows)
    show_failed(failed)
    if args.by:
        for source, own in by_source(pairs).items():
            shown = errors(own)
            print(
                f"{source[:60]:60} {len(own):4} rows  MAPE {shown['mape']:5.1f}%  p90 {shown['p90']:5.1f}%  bias {shown['bias']:+6.1f}%"
            )
    for pair in sorted(pairs, key=lambda p: -abs(p.error))[: args.worst]:
        print(f"{pair.id[:76]:76} measured {pair.measured:9.3f} s  predicted {pair.predicted:9.3f} s  {100 * pair.error:+6.1f}%")
    answer = summary(pairs, len(rows))
    print("  ".join(f"{name} {value}" for name, value in answer.items()))
    if args.json:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
