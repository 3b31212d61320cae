"""How long and in how much memory the planner searches, and where teams' own layouts stand: python benchmarks/search_time.py [--json]

Seconds are those of the processor, on one core. Memory is the most that the search held beside its input, by tracemalloc, in one of
its own, for that slows it down. Placing the stages of a plan, which grows with the devices, is not in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayplane.plan.choice.refused import Refused
from rayplane.plan.choice.search import plan, searched
from rayplane.plan.machine.catalog import described
from rayplane.plan.step.train import price
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import AXES
from rayplane.spec.load import load_job, load_model
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Plan, Workload

JOBS = Path(__file__).parents[1] / "jobs"


TEAMS: dict[str, dict[str, int | str]] = {
    # Narayanan et al., 2021, table 1
    "gpt3-175b-1024xa100": {"dp": 8, "pp": 16, "cp": 1, "tp": 8, "schedule": "interleaved"},
    # Llama Team, 2024, table 4 and section 3.3.2
    "llama3-405b-16384xh100": {"dp": 128, "pp": 16, "cp": 1, "tp": 8, "schedule": "interleaved", "micro_batch": 1},
    # Le Scao et al., 2022, section 3.4
    "bloom-176b-384xa100": {"dp": 8, "pp": 12, "cp": 1, "tp": 4, "schedule": "1f1b", "zero": 1, "micro_batch": 2},
    "llama3-405b-100k": {},
}
"""By job, what its team says of the layout it trained with; of what is left open the best is meant that fits."""


def setting(name: str) -> tuple[ModelSpec, Workload, ClusterSpec]:
    """What a job of this repository asks for."""
    spec = load_job(JOBS / f"{name}.yaml")
    assert spec.train is not None
    assert spec.cluster != "auto"
    return load_model(spec.model), Workload.of(spec.train), described(spec.cluster)


def seconds_and_plan(name: str) -> tuple[float, Plan]:
    """Of the processor, and the answer."""
    of = setting(name)
    began = time.process_time()
    found = plan(*of, None)
    return time.process_time() - began, found


def kilobytes_per_1000_layouts(name: str) -> float:
    """Most that the search holds beside its input, over the layouts that it evaluates."""
    of = setting(name)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = searched(*of, None)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return peak / evaluated(found)


def evaluated(found: Plan) -> int:
    """Layouts that a reason or a price was found for."""
    return 1 + len(found.runners_up) + len(found.rejected)


def standing(name: str, found: Plan, said: Mapping[str, int | str]) -> dict[str, Any]:
    """Where the team's layout is in the search: its step, and its rank among degrees and among all layouts that fit."""
    ranked = [Candidate(found.layout, found.estimate), *found.runners_up]
    layouts = [c.layout for c in ranked] + [r.layout for r in found.rejected if not r.reason.startswith("does not fit")]
    own = [layout for layout in layouts if all(getattr(layout, field) == value for field, value in said.items())]
    assert own, f"{name}: the layout {said} is not among those that fit"
    priced = [(price(*setting(name), layout).step_s, str(layout)) for layout in own]
    step_s, layout = min(priced)
    degrees = tuple(said[axis] for axis in AXES)
    by_degrees = sorted(ranked, key=lambda c: c.estimate.step_s)
    among_degrees = next((i for i, c in enumerate(by_degrees, 1) if degrees == tuple(getattr(c.layout, axis) for axis in AXES)), None)
    assert isinstance(found.rejected, Refused)
    ahead = sum(c.estimate.step_s < step_s for c in ranked) + found.rejected.faster_than(step_s)
    return {
        "layout": layout,
        "step_s": round(step_s, 3),
        "to_winner": round(step_s / found.estimate.step_s, 3),
        "rank_of_degrees": among_degrees,
        "rank_of_variants": 1 + ahead,
    }


def row(name: str) -> dict[str, Any]:
    """One job."""
    seconds, found = seconds_and_plan(name)
    answer = {
        "devices": found.cluster.num_devices,
        "search_s": round(seconds, 2),
        "evaluated": evaluated(found),
        "kb_per_1000": round(kilobytes_per_1000_layouts(name)),
        "winner": str(found.layout),
        "step_s": round(found.estimate.step_s, 3),
        "mfu": round(found.estimate.mfu, 3),
    }
    return {**answer, "team": standing(name, found, TEAMS[name])} if TEAMS[name] else answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    answer = {}
    for name in TEAMS:
        answer[name] = of = row(name)
        print(f"{name}: {of['search_s']} s, {of['evaluated']} layouts, {of['kb_per_1000']} kB per thousand")
        print(f"    winner  {of['winner']}  {of['step_s']} s, MFU {of['mfu']:.1%}")
        if team := of.get("team"):
            ranks = f"rank {team['rank_of_degrees']} of dp x pp x cp x tp, {team['rank_of_variants']} of all"
            print(f"    team    {team['layout']}  {team['step_s']} s, {team['to_winner']} of the winner's, {ranks}")
    if args.json:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
