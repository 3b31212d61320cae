"""What the answers of an explanation draw on: the study, what was found of its axes, sweeps and stages, and layouts to compare with.

An axis that the plan does not use is still asked about: `with_tp`, `with_cp` are then the smallest cut there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayplane.plan.machine.network import Group
from rayplane.plan.step.compute import Microbatch
from rayplane.plan.step.pieces import Pieces
from rayplane.plan.why.bounds import passage
from rayplane.plan.why.explanation import Axis, StageShare, Sweep
from rayplane.plan.why.pipe_sweeps import pipe_of
from rayplane.plan.why.study import Study
from rayplane.plan.why.traffic import Message, over_cp, over_pp, over_tp
from rayplane.plan.why.weight_traffic import over_dp
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Candidate

MESSAGES = {"tp": over_tp, "cp": over_cp, "dp": over_dp, "pp": over_pp}


@dataclass(frozen=True, slots=True)
class Facts:
    """For one plan."""

    study: Study
    axes: tuple[Axis, ...]
    sweeps: tuple[Sweep, ...]
    stages: tuple[StageShare, ...]

    def axis(self, name: str) -> Axis | None:
        """An axis, if the plan has it."""
        return next((a for a in self.axes if a.name == name), None)

    def finding(self, sweep: str) -> str:
        """What a sweep found, or that it was none."""
        return next((s.finding for s in self.sweeps if s.name == sweep), "there is nothing to compare")

    @property
    def layout(self) -> Layout:
        """The winner."""
        return self.study.layout

    @property
    def pipe(self) -> Candidate | None:
        """The winner, or the best candidate with stages."""
        return pipe_of(self.study)

    @property
    def with_tp(self) -> Layout:
        """The winner, or two tp ranks on its devices."""
        return self.layout if self.layout.tp > 1 or self.study.max_tp < 2 else self._halved("tp")

    @property
    def with_cp(self) -> Layout:
        """The winner, or two cp ranks on its devices."""
        return self.layout if self.layout.cp > 1 else self._halved("cp")

    def _halved(self, axis: str) -> Layout:
        """The winner with an axis of two; half as many replicas, or else stages, make room for it."""
        layout = self.layout
        cp, tp = (layout.cp, 2) if axis == "tp" else (2, layout.tp)
        if layout.dp > 1:
            return replace(layout, dp=layout.dp // 2, cp=cp, tp=tp, zero=0, shard=0, boundaries=())
        return Layout(pp=max(1, layout.pp // 2), cp=cp, tp=tp, sp=layout.sp, micro_batch=layout.micro_batch)

    def microbatch(self, layout: Layout) -> tuple[Microbatch, Pieces]:
        """One microbatch and its parts under a layout."""
        return self.study.pricer.microbatch(layout)

    def tp_group(self, layout: Layout) -> Group:
        """The shape of its tp groups."""
        return self.study.pricer.topology.tp_group(layout)

    def messages(self, layout: Layout, axis: str) -> Sequence[Message]:
        """What the busiest rank of a layout sends on an axis in a step."""
        drafted = self.study.pricer.draft(self.study.pricer.outline(layout))
        return list(MESSAGES[axis](passage(replace(self.study, draft=drafted))))
