"""What the planner would do elsewhere: a change of the cluster or the workload, the winner under it, and the best then.

nic=2x ──▶ cluster and workload ──▶ the winner priced under it
                                └──▶ search: the best then, compared by tokens/s, and per device where their number changed
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.errors import PlacementError, SpecError
from rayplane.plan.choice.report import seconds
from rayplane.plan.choice.search import plan
from rayplane.plan.step.train import Pricer
from rayplane.plan.why.change import changes
from rayplane.plan.why.changed import Setting, changed
from rayplane.plan.why.explanation import WhatIf
from rayplane.plan.why.study import Study, priced
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Plan


def setting_of(written: str, setting: Setting) -> Setting:
    """What is left of a cluster and a workload after `nic=2x`. Raises SpecError for what cannot be read or done."""
    for change in changes(written):
        setting = changed(setting, change)
    return setting


def what_if(of: Study, written: str) -> WhatIf:
    """The answer to one --what-if."""
    new = setting_of(written, Setting(of.plan.cluster, of.workload))
    same_s, reason = _same(of, new)
    try:
        best: Plan | None = plan(of.model, new.workload, new.cluster, of.section)
        why_none = ""
    except (PlacementError, SpecError) as error:
        best, why_none = None, str(error).splitlines()[0]
    return WhatIf(
        change=written,
        meaning=new.meaning,
        same_layout_s=same_s,
        best=best.layout if best else None,
        best_s=best.estimate.step_s if best else None,
        finding=f"no plan: {why_none}" if best is None else _finding(of, new, best, same_s, reason),
    )


def _same(of: Study, new: Setting) -> tuple[float | None, str]:
    """The winner's step under the change, or why it cannot be."""
    layout = of.layout
    if layout.size > new.cluster.num_devices:
        return None, f"it needs {layout.size} devices"
    if layout.dp > new.workload.global_batch:
        return None, f"dp {layout.dp} needs as many samples"
    batch = new.workload.global_batch // layout.dp
    fewer = replace(layout, micro_batch=min(layout.micro_batch, batch))
    found = priced(Pricer(of.model, new.workload, new.cluster), fewer)
    if found.estimate.verdict == "does not fit":
        return None, f"it needs {found.estimate.memory_bytes / 1e9:.1f} GB"
    return found.estimate.step_s, ""


def _finding(of: Study, new: Setting, best: Plan, same_s: float | None, reason: str) -> str:
    now, then = of.plan.estimate, best.estimate
    gain = then.tokens_s / now.tokens_s - 1
    told = f"{then.tokens_s:,.0f} tokens/s instead of {now.tokens_s:,.0f} ({gain:+.1%})"
    alike = _alike(best.layout, of.layout)
    change = "the same layout" if alike else f"{best.layout}"
    text = f"best then {change}: {seconds(then.step_s)} a step, {told}"
    per_device = then.tokens_s / best.layout.size / (now.tokens_s / of.layout.size) - 1
    if new.cluster.num_devices != of.plan.cluster.num_devices:
        text += f", {per_device:+.1%} per device"
    if alike:
        return text
    stays = f"{seconds(same_s)} under {of.layout}" if same_s is not None else f"{of.layout} would not run: {reason}"
    return f"{text}; {stays}"


def _alike(a: Layout, b: Layout) -> bool:
    """Whether two layouts differ in their boundaries at most."""
    return replace(a, boundaries=()) == replace(b, boundaries=())
