"""Where rayplane's time goes while it serves: what rank 0 and the processes have spent between two looks.

of steps   by rank 0's own clock     forward: the model | host: scheduling, sampling, packing | recv_wait: nothing to do
of cores   CPU seconds, by proc(5)   rank: the model, and `host` | ingress: HTTP, tokens to text | owner: rayplane run

outside_steps = host / (forward + host)                       share of a step that is not the model
outside_cores = (host + ingress + owner) / all CPU seconds    the same of all that was spent, on whichever core
"""

from __future__ import annotations

import urllib.request
from collections import Counter
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from serve_processes import Running

KINDS = {"rayplane.serve.worker": "rank", "rayplane.api.server": "ingress"}
STEP_SECONDS, STEPS = "rayplane_step_seconds_total", "rayplane_engine_steps_total"
IDLE, FORWARD = "recv_wait", "forward"
TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Outside:
    """Seconds by phase of rank 0 of every replica, CPU seconds by kind of process, and steps."""

    phases: Counter[str]
    cpu_s: Counter[str]
    steps: int

    def since(self, before: Outside) -> Outside:
        """What was spent in between."""
        return Outside(self.phases - before.phases, self.cpu_s - before.cpu_s, self.steps - before.steps)

    def shares(self) -> dict[str, float]:
        """Shares as above, and milliseconds of a step by phase."""
        busy_s = self.phases.total() - self.phases[IDLE]
        host_s = busy_s - self.phases[FORWARD]
        spent_s = host_s + self.cpu_s["ingress"] + self.cpu_s["owner"]
        by_phase = {f"{phase}_ms": round(1e3 * seconds / max(1, self.steps), 3) for phase, seconds in self.phases.items()}
        by_kind = {f"{kind}_cpu_s": round(seconds, 2) for kind, seconds in self.cpu_s.items()}
        shares = {"outside_steps": host_s / max(busy_s, 1e-9), "outside_cores": spent_s / max(self.cpu_s.total(), 1e-9)}
        return {name: round(share, 4) for name, share in shares.items()} | {"steps": self.steps, **by_phase, **by_kind}


def look(server: Running) -> Outside:
    """All that was spent until now. A rank reports once a second, so what came last may be missing."""
    cpu_s: Counter[str] = Counter()
    for process in server.tree():
        cpu_s[next((kind for entry, kind in KINDS.items() if entry in process.command), "owner")] += process.cpu_s
    phases: Counter[str] = Counter()
    for labels, value in samples(server.metrics_url, STEP_SECONDS):
        if labels["rank"] == "0":
            phases[labels["phase"]] += value
    return Outside(phases, cpu_s, round(sum(value for _, value in samples(server.url, STEPS))))


def samples(url: str, name: str) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of a metric at a server or an exporter."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]
