"""Steps of the reference model on this machine, predicted after `rayplane calibrate` and measured: python benchmarks/predict_here.py

Calibration, then each layout in turn: the planner prices it with the profile, and ranks of rayplane train it. Predicted over measured
should be within 10% of 1, and the layouts in the same order; where two of them are closer than 3%, either order will do. --rounds 2
repeats both calibration and runs, in alternation, and takes medians: for a machine that is not quiet. The machine must do nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from reference import GLOBAL_BATCH, SEQ_LEN, SPEC
from systems import Bench, samples_of, task

from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.step.profile import with_profile
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Workload
from rayplane.spec.profile import Profile, read_profile

WITHIN = 0.10
ALIKE = 0.03
MEMORY_BYTES = 10 * 10**9
JOB = Path(__file__).parent.parent / "jobs" / "reference.yaml"
LAYOUTS = {
    "serial": Layout(micro_batch=2),
    "tp2": Layout(tp=2, micro_batch=4),
    "pp2 1f1b": Layout(pp=2, micro_batch=2),
    "pp2 zb-h1": Layout(pp=2, micro_batch=2, schedule="zb-h1"),
    "pp2 zbv": Layout(pp=2, micro_batch=2, schedule="zbv", vpp=2),
    "dp2": Layout(dp=2, micro_batch=4),
    "cp2": Layout(cp=2, micro_batch=4),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A layout with its boundaries, and its step."""

    layout: Layout
    step_s: float
    time_s: dict[str, float]


def calibrate(path: Path, quick: bool) -> Profile:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "rayplane", "calibrate", str(JOB), "--runtime", "local", "--out", str(path)]
    subprocess.run([*command, *(["--quick"] if quick else [])], check=True, stdout=subprocess.DEVNULL)
    return read_profile(path)


def predict(layout: Layout, profile: Profile) -> Prediction:
    """Price a layout on as many of this machine's cores as it takes."""
    cluster = with_profile(homogeneous({"here": layout.size}, "cpu", MEMORY_BYTES, {}), profile)
    pricer = Pricer(SPEC, Workload(GLOBAL_BATCH, SEQ_LEN, "fp32"), cluster)
    draft = pricer.draft(pricer.outline(layout))
    estimate = pricer.price(draft)
    return Prediction(draft.layout, estimate.step_s, estimate.time_s)


def measure(bench: Bench, layout: Layout, steps: int) -> tuple[float, tuple[dict[str, float], ...]]:
    """Seconds of a step, after one that does not count, and phases by rank."""
    fields = {name: getattr(layout, name) for name in ("dp", "pp", "tp", "cp", "vpp", "schedule", "micro_batch", "boundaries")}
    ran = bench.run("rayplane", task(bench.folder, 1, steps, **fields))
    return GLOBAL_BATCH * SEQ_LEN / ran.tokens_s, ran.phases


def wrong_pairs(predicted: dict[str, float], measured: dict[str, float]) -> list[str]:
    """Pairs of layouts that are predicted in the other order, and are not alike."""
    out = []
    for a, b in combinations(predicted, 2):
        apart = abs(measured[a] / measured[b] - 1) > ALIKE
        if apart and (predicted[a] < predicted[b]) != (measured[a] < measured[b]):
            out.append(f"{a}, {b}")
    return out


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of calibration and runs; medians by layout."""
    predicted: dict[str, list[float]] = {name: [] for name in args.only or LAYOUTS}
    measured: dict[str, list[float]] = {name: [] for name in predicted}
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.prepare(samples_of(1 + args.steps))
        for _ in range(args.rounds):
            profile = read_profile(args.profile) if args.profile else calibrate(Path(folder) / "profile.yaml", args.quick)
            for name in predicted:
                prediction = predict(LAYOUTS[name], profile)
                step_s, phases = measure(bench, prediction.layout, args.steps)
                predicted[name].append(prediction.step_s)
                measured[name].append(step_s)
                terms = {term: round(s, 3) for term, s in prediction.time_s.items() if s}
                details[name] = {"layout": str(prediction.layout), "terms": terms, "phases": phases}
    rows = {name: (statistics.median(predicted[name]), statistics.median(measured[name])) for name in predicted}
    layouts = {
        name: {"predicted_s": round(p, 4), "measured_s": round(m, 4), "ratio": round(p / m, 3), **details[name]}
        for name, (p, m) in rows.items()
    }
    wrong = wrong_pairs({name: p for name, (p, _) in rows.items()}, {name: m for name, (_, m) in rows.items()})
    worst = max(abs(row["ratio"] - 1) for row in layouts.values())
    return {"layouts": layouts, "worst": round(worst, 3), "wrong_pairs": wrong, "right": worst <= WITHIN and not wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=1, help="alternations of calibration and runs")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per run")
    parser.add_argument("--quick", action="store_true", help="calibrate as quickly as it goes")
    parser.add_argument("--profile", type=Path, help="a profile to use instead of calibrating")
    parser.add_argument("--only", nargs="*", choices=list(LAYOUTS), help="layouts to run")
    args = parser.parse_args()
    result = compare(args)
    print(f"{'layout':10} {'predicted':>10} {'measured':>10} {'ratio':>7}")
    for name, row in result["layouts"].items():
        print(f"{name:10} {row['predicted_s']:8.2f} s {row['measured_s']:8.2f} s {row['ratio']:7.3f}   {row['layout']}")
    order = f"in another order: {'; '.join(result['wrong_pairs'])}" if result["wrong_pairs"] else "the order is right"
    print(f"furthest off: {result['worst']:.1%}; {order}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
