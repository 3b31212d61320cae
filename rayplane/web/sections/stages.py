"""The pipe's stages: what each holds against its device, and what each does when."""

from __future__ import annotations

from collections.abc import Sequence

from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Explanation, StageShare
from rayplane.web.bars import Column, Part, columns, strip
from rayplane.web.gantt import gantt
from rayplane.web.markup import Markup, tag
from rayplane.web.palette import colours
from rayplane.web.sections.parts import block
from rayplane.web.svg import legend
from rayplane.web.table import numbers
from rayplane.web.units import counted, percent, size

MOST = 128
"""Columns side by side; of more stages, the fullest of each group of neighbours is drawn."""


def memory(explanation: Explanation) -> Markup | None:
    """Bytes by stage and term, under the devices' capacity."""
    stages = explanation.stages
    if not stages:
        return None
    shown, names = _fullest(stages), list(dict.fromkeys(name for s in stages for name, value in s.memory if value > 0))
    fullest = max(stages, key=lambda s: s.memory_bytes / s.capacity_bytes)
    filled = (
        f"{size(fullest.memory_bytes)} of {size(fullest.capacity_bytes)} ({percent(fullest.memory_bytes / fullest.capacity_bytes)})"
    )
    lead = (
        f"On the fullest rank of each stage. Stage {fullest.stage} is the fullest: {filled}."
        if len(stages) > 1
        else f"On a rank: {filled}."
    )
    if len(shown) < len(stages):
        lead += f" Of {len(stages):,} stages, {len(shown)} are drawn: the fullest of each group of neighbours."
    colour = colours(names)
    key = legend([*((n, colour[n]) for n in names), ("the device's memory", "limit")])
    figure = tag("figure", key, _drawn(shown, lead, colour))
    return block("memory", "What each stage holds" if len(stages) > 1 else "What a rank holds", lead, figure, _numbers(shown, names))


def timeline(explanation: Explanation) -> Markup:
    """The simulated step."""
    plan, count = explanation.plan, len(explanation.timeline.ranks)
    shown = explanation.shown_microbatches or plan.num_microbatches
    fewer = f" Of these microbatches the first {shown:,} are drawn." if shown < plan.num_microbatches else ""
    under = f" under {plan.layout.schedule}" if count > 1 else ""
    pipe = f"{counted(count, 'stage')} and {counted(plan.num_microbatches, 'microbatch', 'microbatches')}{under}"
    idle = f" The pipe idles {percent(plan.estimate.bubble)} of the time." if count > 1 else ""
    lead = f"The step as simulated from the very actions that the ranks run: {pipe}.{fewer}{idle}"
    return block("timeline", "The step in time", lead, gantt(explanation.timeline, "The simulated step"))


def _drawn(stages: Sequence[StageShare], said: str, colour: dict[str, str]) -> Markup:
    """Columns side by side; of a single stage a strip."""
    if len(stages) > 1:
        stacks = [Column(f"stage {s.stage}", str(s.stage), _parts(s), s.capacity_bytes) for s in stages]
        return columns(f"Memory by stage. {said}", "stage", stacks)
    only = stages[0]
    parts = [Part(name, value, size(value)) for name, value in _parts(only)]
    full = 1.02 * max(only.memory_bytes, only.capacity_bytes)
    return strip(f"Memory. {said}", parts, full, colour, mark=only.capacity_bytes)


def _parts(stage: StageShare) -> tuple[tuple[str, int], ...]:
    return tuple((name, value) for name, value in stage.memory if value > 0)


def _fullest(stages: Sequence[StageShare]) -> list[StageShare]:
    group = -(-len(stages) // MOST)
    return [max(stages[i : i + group], key=lambda s: s.memory_bytes) for i in range(0, len(stages), group)]


def _numbers(stages: Sequence[StageShare], names: Sequence[str]) -> Markup:
    headers = ("stage", "layers", "device", "a microbatch", *names, "in all", "of")
    rows = []
    for s in stages:
        held = dict(s.memory)
        cells = (size(held.get(n, 0)) for n in names)
        layers = " + ".join(map(str, s.layers))
        rows.append((str(s.stage), layers, s.kind, seconds(s.compute_s), *cells, size(s.memory_bytes), size(s.capacity_bytes)))
    return numbers("Memory and compute by stage", headers, rows)
