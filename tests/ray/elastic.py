"""A training job on three nodes of one device each, of which one is removed: run in a process of its own, with a Ray of its own.

prints a line of JSON: the layouts of both attempts, the steps done twice, and seconds from the loss to the next step
"""

import json
import sys
from pathlib import Path

from ray.cluster_utils import Cluster
from training_job import Run

STORE_BYTES = 80_000_000
STEPS = 160
SURE = 40
"""Steps before the node goes."""


class Elastic(Run):
    """A job that goes on with two devices, and keeps its state in memory every few steps."""

    def write(self, **values: object) -> None:
        super().write(**values)
        path = self.path / "job.yaml"
        text = path.read_text().replace("restarts: 2,", "restarts: 2, min_devices: 2,").replace("keep: 2", "keep: 2, memory_every: 5")
        path.write_text(text)


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(2)]
    try:
        layout = "{dp: 3, zero: 1, micro_batch: 2}"
        with Elastic(folder, environment={"RAY_ADDRESS": cluster.address}, layout=layout, steps=STEPS, every=50) as run:
            run.until("StepDone", SURE)
            cluster.remove_node(nodes[1], allow_graceful=False)
            run.until("Started", 2)
            assert run.end() == 0, run.said()
            events, said = run.events(), run.said()
    finally:
        cluster.shutdown()
    kinds = [e["event"] for e in events]
    lost, planned = next(i for i, kind in enumerate(kinds) if kind in ("RankLost", "RankFailed")), kinds.index("Planned")
    done = [e["step"] for e in events[:lost] if e["event"] == "StepDone"]
    again = next(e for e in events[planned:] if e["event"] == "StepDone")
    told = {
        "final": run.result(),
        "lost_steps": done[-1] - again["step"] + 1,
        "next_step_s": again["unix_s"] - events[lost]["unix_s"],
        "reason": events[kinds.index("RankLost")]["reason"],
        "said": said,
        "losses": {step: sorted(of) for step, of in run.losses().items()},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
