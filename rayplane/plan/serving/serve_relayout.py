"""Which layout the planner would choose for what is measured, beside the one that serves.

measured 6 requests/s of 900 + 40 tokens ─▶ plan ─▶ 2 x tp2, 4 devices      the present one: 1 device each, not even 4 hold it
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from rayplane.errors import PlacementError
from rayplane.plan.serving.serve_capacity import Capacity, Measured
from rayplane.plan.serving.serve_plan import Option
from rayplane.plan.serving.serve_search import plan_serving
from rayplane.plan.serving.serving import Asked
from rayplane.spec.cluster import ClusterSpec


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways to hold one load; None where a way does not."""

    best: Option | None
    """The fewest devices of all ways."""
    present_devices: int | None
    """The fewest of the present way."""


def compared(asked: Asked, cluster: ClusterSpec, present: Capacity, measured: Measured) -> Comparison:
    """The planner's choice against the present way."""
    best: Option | None = None
    with suppress(PlacementError):
        best = plan_serving(asked.served, measured.demand(asked.demand), cluster, asked.engine).best
    fewest = present.fewest(measured)
    return Comparison(best, fewest.devices if fewest else None)
