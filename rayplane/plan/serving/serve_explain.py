"""A serving plan as rows and sentences: what `rayplane plan` prints of one, and the same as plain data for programs.

replicas x cut  devices  ttft p50  p95     p99     tpot p50  p95      p99      tokens/s  at most  cache       verdict
1 x tp4         4        153 ms    281 ms  334 ms  20.1 ms   23.0 ms  23.9 ms  1,024     4,310    1.2 M, 941  holds
2 x tp2         4        …
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rayplane.plan.choice.report import seconds
from rayplane.plan.serving.serve import Terms
from rayplane.plan.serving.serve_plan import Option, ServePlan, Times
from rayplane.plan.step.memory import gigabytes


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What to print: options (the winner first), the refused, and sentences."""

    headers: tuple[str, ...]
    ranked: tuple[tuple[str, ...], ...]
    refused: tuple[tuple[str, str], ...]
    """(cut, reason)."""
    why: str
    notes: tuple[str, ...]


def serve_report(plan: ServePlan) -> ServeReport:
    """Everything a user may want to see of a plan."""
    percent = f"p{100 * plan.demand.share:g}"
    times = [name for metric in ("ttft", "tpot") for name in (f"{metric} p50", percent, "p99")]
    return ServeReport(
        headers=("replicas x cut", "devices", *times, "tokens/s", "at most", "cache", "verdict"),
        ranked=tuple(_row(option) for option in (plan.best, *plan.runners_up)),
        refused=tuple((str(r), r.reason) for r in plan.refused),
        why=why(plan),
        notes=tuple(_notes(plan)),
    )


def why(plan: ServePlan) -> str:
    """By which rule the winner won, and against whom."""
    said = f"{plan.best}: {plan.rule}"
    if not plan.runners_up:
        return said
    ours, theirs = plan.best, plan.runners_up[0]
    differs = [
        f"{name} {a} against {b}"
        for name, a, b in (
            ("devices", f"{ours.devices}", f"{theirs.devices}"),
            ("requests/s", f"{ours.rate:.3g}", f"{theirs.rate:.3g}"),
            ("ttft", seconds(ours.ttft_s), seconds(theirs.ttft_s)),
            ("tpot", seconds(ours.tpot_s), seconds(theirs.tpot_s)),
            ("tokens/s at most", f"{ours.most_tokens_s:,.0f}", f"{theirs.most_tokens_s:,.0f}"),
        )
        if a != b
    ]
    return f"{said}. Next is {theirs}: {', '.join(differs) or 'as good'}"


def serve_object(plan: ServePlan) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "demand": asdict(plan.demand),
        **_object(plan.best),
        "saturated": asdict(plan.saturated),
        "evaluated": 1 + len(plan.runners_up) + len(plan.refused),
        "placement": [asdict(slot) for slot in plan.placement.slots],
        "runners_up": [_object(option) for option in plan.runners_up],
        "rejected": [{"cut": asdict(r.cut), "cores": r.cores, "reason": r.reason} for r in plan.refused],
        "rule": plan.rule,
        "shortfall": plan.shortfall,
        "why": why(plan),
        "notes": _notes(plan),
    }


def _object(option: Option) -> dict[str, Any]:
    values = asdict(option)
    del values["cut"], values["boundaries"]
    terms = {name: getattr(option, name).named() for name in ("prompt_terms", "decode_terms")}
    verdict = {"verdict": "misses" if option.misses else "holds"}
    return {"layout": asdict(option.layout), "devices": option.devices, **values, **terms, **verdict}


def _row(option: Option) -> tuple[str, ...]:
    cache = f"{option.cache_tokens:,} tokens, {option.sequences} sequences"
    verdict = "; ".join(option.misses) or "holds"
    shown = (*_times(option.ttft), *_times(option.tpot), f"{option.tokens_s:,.0f}", f"{option.most_tokens_s:,.0f}")
    return str(option), str(option.devices), *shown, cache, verdict


def _times(times: Times) -> tuple[str, str, str]:
    return seconds(times.p50_s), seconds(times.share_s), seconds(times.p99_s)


def _notes(plan: ServePlan) -> list[str]:
    """What the table does not say."""
    best, full = plan.best, plan.saturated
    at = f"{best.rate:.3g} requests/s of {plan.demand.prompt} + {plan.demand.output} tokens"
    notes = [
        f"times are at {at}; {gigabytes(best.weights_bytes)} of weights on the fullest rank",
        f"a prompt alone: {_terms(best.prompt_terms)}; a step that decodes: {_terms(best.decode_terms)}",
        f"saturated, {full.at_once} sequences at a time on each replica: {full.tokens_s:,.0f} tokens/s, a token in "
        f"{seconds(full.tpot_s)}, the first after {seconds(full.ttft_s)} with the wait for a place",
    ]
    if plan.shortfall:
        notes.insert(0, plan.shortfall)
    if plan.demand.cached:
        notes.append(f"{plan.demand.cached:.0%} of each prompt is taken to be in the prefix cache")
    return notes


def _terms(terms: Terms) -> str:
    """The largest three."""
    largest = sorted(terms.named().items(), key=lambda item: -item[1])[:3]
    return f"{seconds(terms.total)} ({', '.join(f'{name} {seconds(s)}' for name, s in largest if s > 0)})"
