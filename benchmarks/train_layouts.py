"""Training speed of the reference model, beside plain torch, in alternation: python benchmarks/train_layouts.py [--json] [--rounds 3]

Each layout runs both systems in turn, round by round, one thread per rank; the ratio is the median over rounds of rayplane / torch.
"pp2_by_cost" sets rayplane's stages, cut by the planner, against torch's even split.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reference import GLOBAL_BATCH, MARK, SEQ_LEN, SPEC

from rayplane.plan.catalog import homogeneous
from rayplane.plan.search import plan
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.plan import Workload

HERE = Path(__file__).parent
Result = dict[str, Any]


def by_cost() -> tuple[int, ...]:
    """The planner's boundaries for pp2 on two CPU devices."""
    cluster = homogeneous({"here": 2}, "cpu", 10 * 10**9, {})
    return plan(SPEC, Workload(GLOBAL_BATCH, SEQ_LEN, "fp32"), cluster, LayoutSection(pp=2, micro_batch=2)).layout.boundaries


def cases() -> dict[str, tuple[Layout, Layout]]:
    """(rayplane's layout, torch's layout) by name; pp2 has 8 microbatches."""
    even = Layout(pp=2, micro_batch=2, boundaries=even_boundaries(SPEC.layers, 2))
    whole = (SPEC.layers,)
    same = {
        "serial": Layout(micro_batch=2, boundaries=whole),
        "pp2": even,
        "tp2": Layout(tp=2, micro_batch=4, boundaries=whole),
        "dp2": Layout(dp=2, micro_batch=4, boundaries=whole),
    }
    return {**{name: (layout, layout) for name, layout in same.items()}, "pp2_by_cost": (replace(even, boundaries=by_cost()), even)}


def run(system: str, layout: Layout, warmup: int, steps: int) -> Result:
    """One run of one system: speed of the slowest rank, CPU seconds of all ranks, peak memory of the fullest."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={layout.size}"]
    command += [str(HERE / f"{system}_rank.py"), str(port), str(warmup), str(steps), json.dumps(asdict(layout))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    ranks = [json.loads(line.split(MARK, 1)[1]) for line in done.stdout.splitlines() if MARK in line]
    if len(ranks) != layout.size:
        raise SystemExit(f"{system} under {layout} failed:\n{done.stderr[-3000:]}")
    return {
        "tokens_s": min(r["tokens_s"] for r in ranks),
        "cpu_s": sum(r["cpu_s"] for r in ranks) / steps,
        "peak_gb": max(r["peak_gb"] for r in ranks),
        "peak_gb_by_rank": [round(r["peak_gb"], 2) for r in sorted(ranks, key=lambda r: r["rank"])],
    }


def compare(layouts: tuple[Layout, Layout], rounds: int, warmup: int, steps: int) -> Result:
    """Both systems in alternation; medians over rounds."""
    runs: dict[str, list[Result]] = {"rayplane": [], "torch": []}
    for _ in range(rounds):
        for system, layout in zip(runs, layouts, strict=True):
            runs[system].append(run(system, layout, warmup, steps))
    ratios = [a["tokens_s"] / b["tokens_s"] for a, b in zip(runs["rayplane"], runs["torch"], strict=True)]
    median = {system: {k: statistics.median(r[k] for r in rs) for k in ("tokens_s", "cpu_s", "peak_gb")} for system, rs in runs.items()}
    return {
        "layout": str(layouts[0]),
        "rayplane": round(median["rayplane"]["tokens_s"], 1),
        "torch": round(median["torch"]["tokens_s"], 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(r, 3) for r in ratios],
        "cpu_s": {system: round(m["cpu_s"], 2) for system, m in median.items()},
        "peak_gb": {system: round(m["peak_gb"], 2) for system, m in median.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the two systems")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per run")
    parser.add_argument("--warmup", type=int, default=1, help="untimed steps per run")
    parser.add_argument("--only", nargs="*", choices=list(cases()), help="layouts to run")
    args = parser.parse_args()
    results: dict[str, Result] = {}
    print(f"{'layout':12} {'rayplane':>9} {'torch':>7} {'ratio':>6}   CPU s a step     peak GB a rank")
    for name, layouts in cases().items():
        if args.only and name not in args.only:
            continue
        r = results[name] = compare(layouts, args.rounds, args.warmup, args.steps)
        cpu, peak = r["cpu_s"], r["peak_gb"]
        print(
            f"{name:12} {r['rayplane']:9} {r['torch']:7} {r['ratio']:6}   {cpu['rayplane']:6} {cpu['torch']:6}"
            f"    {peak['rayplane']:5} {peak['torch']:5}   {r['layout']}",
            flush=True,
        )
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
