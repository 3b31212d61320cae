"""How long it takes to place stages on a cluster: python benchmarks/place_stages.py [--stages 1000] [--json]

Two simulated nodes of this machine, `ray.cluster_utils.Cluster`, offer as many stages as are asked for; no actor is started.

deciding     which node each stage goes to, from what is free (`plan/choice/bind.py`)
placed       from asking to a placement group with a bundle for each stage, all of them reserved
"""

from __future__ import annotations

import argparse
import json
import time

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import remove_placement_group

from rayplane.runtime.patience import Patience
from rayplane.runtime.ray import connect
from rayplane.runtime.ray.places import USUAL, Ask, reserve, rooms
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

STAGE = "STAGE"
STORE_BYTES = 80_000_000
WAIT_S = 120.0


def measure(stages: int) -> dict[str, float]:
    """Seconds for so many stages, of one rank each."""
    ask = Ask(f"of-{stages}", Layout(dp=stages), Placement(()), STAGE, 1, USUAL)
    while sum(node.devices for node in rooms(ask, free=True)) < stages:  # until Ray tells that all is free
        time.sleep(0.05)
    began_s = time.perf_counter()
    assert ask.bound(rooms(ask, free=True)) is not None
    decided_s = time.perf_counter()
    reserved = reserve(ask, Patience(WAIT_S))
    done_s = time.perf_counter()
    remove_placement_group(reserved.group)
    return {"stages": stages, "deciding_s": decided_s - began_s, "placed_s": done_s - decided_s}


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(
            num_cpus=1, resources={STAGE: (options.stages + 1) // 2}, object_store_memory=STORE_BYTES, include_dashboard=False
        )
    connect(cluster.address)
    try:
        rows = [measure(stages) for stages in sorted({1, options.stages // 10 or 1, options.stages})]
    finally:
        ray.shutdown()
        cluster.shutdown()
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'stages':>7}  {'deciding':>9}  {'placed':>9}")
    for row in rows:
        print(f"{row['stages']:>7,}  {row['deciding_s'] * 1e3:>6.0f} ms  {row['placed_s'] * 1e3:>6.0f} ms")


if __name__ == "__main__":
    main()
