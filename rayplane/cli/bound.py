"""What it means for a job that its stages go elsewhere than they were planned: the same layout, priced on the devices it got.

planned on a, b ──▶ bound to a, c      price(layout, the devices of a and c) ──▶ said, and told to the exporter as the prediction
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from rayplane.plan.choice.bind import Bound
from rayplane.plan.step.train import price
from rayplane.runtime.group import Launch
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement, Workload

SHOWN = 4


@dataclass(frozen=True, slots=True)
class Repriced:
    """Is told by a group where stages go."""

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    predict: Callable[[float], None]
    """Is told the seconds of a step."""
    say: Callable[[str], None]

    def __call__(self, launch: Launch, bound: Bound) -> None:
        """Price the layout there, and say what changes."""
        planned_s, now_s = (self._step_s(launch, where) for where in (launch.placement, bound.placement))
        self.predict(now_s)
        apart = "" if bound.reach == "island" else f", tp groups not in one island each (limits.fallback), but {_words(bound.reach)}"
        self.say(
            f"placed on {_nodes(bound.placement)} instead of {_nodes(launch.placement)}{apart}: "
            f"a step is predicted to take {now_s * 1e3:,.4g} ms instead of {planned_s * 1e3:,.4g} ms"
        )

    def _step_s(self, launch: Launch, placement: Placement) -> float:
        return price(self.model, self.workload, taken(self.cluster, placement), launch.layout).step_s


def taken(cluster: ClusterSpec, placement: Placement) -> ClusterSpec:
    """The devices that a placement takes, as a cluster of their own; nodes that came later are like the first one of the cluster."""
    used = Counter[tuple[str, str]]()
    for slot in placement.slots:
        used[slot.node, slot.island] += len(slot.ranks)
    known = {node.name: node for node in cluster.nodes}
    nodes = [replace(known.get(name, cluster.nodes[0]), name=name, island=island, devices=n) for (name, island), n in used.items()]
    return replace(cluster, nodes=tuple(nodes))


def _nodes(placement: Placement) -> str:
    names = list(dict.fromkeys(slot.node for slot in placement.slots))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _words(reach: str) -> str:
    return "in one rack" if reach == "rack" else "wherever there was room"
