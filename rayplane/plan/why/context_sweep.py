"""Longer contexts at the same tokens a step: the sequence cut over cp, or not, with tp, dp and pp to use the same devices.

context   samples a step      without cp                     with cp
S         B                   dp of B samples, tp            each sequence over cp ranks
2S        B/2                 half as many replicas at most  …
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from rayplane.plan.choice.candidates import Space
from rayplane.plan.choice.report import seconds
from rayplane.plan.step.train import Pricer
from rayplane.plan.why.explanation import Point, Sweep
from rayplane.plan.why.points import point, powers
from rayplane.plan.why.study import Study, fitted, quickest
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Candidate

LONGEST = 1 << 20
"""Tokens."""
DOUBLINGS = 5
LEAST_PART = 512
"""Tokens of a sequence on a cp rank, at least."""
MOST_CP = 64


def context_sweep(of: Study) -> Sweep | None:
    """Two points for each length: the best without cp, and the best with it."""
    if of.layout.size == 1:
        return None
    asked = of.workload.seq_len
    lengths = [asked << i for i in range(DOUBLINGS) if i == 0 or asked << i <= LONGEST]
    pairs = [_pair(of, length) for length in lengths]
    question = f"Contexts from {tokens(asked)} on, as many tokens a step: cut the sequence (cp), or only weights and batch (tp, dp)?"
    return Sweep("cp-or-tp", question, "context", tuple(p for pair in pairs for p in pair), _finding(of, pairs))


def _pair(of: Study, length: int) -> tuple[Point, Point]:
    batch = max(1, of.workload.global_batch * of.workload.seq_len // length)
    pricer = of.pricer_for(replace(of.workload, seq_len=length, global_batch=batch))
    limit = min(MOST_CP, max(1, length // LEAST_PART))
    known = of.candidates if length == of.workload.seq_len else ()
    cut = quickest([*_tried(of, pricer, [cp for cp in powers(limit) if cp > 1]), *(c for c in known if c.layout.cp > 1)])
    whole = quickest([c for c in known if c.layout.cp == 1] or _tried(of, pricer, [1]))
    name = tokens(length)
    missing = f"no layout of {of.layout.size} devices holds {name} tokens"
    return (
        point(of, length, f"{name} {_short(whole)}", whole, f"without cp {missing}"),
        _marked(of, pricer, point(of, length, f"{name} {_short(cut)}", cut, f"with cp {missing}")),
    )


def _marked(of: Study, pricer: Pricer, p: Point) -> Point:
    """With a note where the search would not look."""
    most = Space(of.model, pricer.workload, pricer.topology, of.plan.cluster.num_devices).max_cp
    if p.step_s is None or p.layout is None or p.layout.cp <= most:
        return p
    part = f"parts of {tokens(pricer.workload.seq_len // p.layout.cp)}: left out of the search"
    return replace(p, note=f"{p.note}; {part}" if p.note else part)


def _tried(of: Study, pricer: Pricer, cps: list[int]) -> list[Candidate]:
    """With any of these cp: the winner's stages, and as many replicas as there are samples for; without cp any tp inside an island,
    with it the winner's, a whole island or none."""
    used, batch, island, ours = of.layout.size, pricer.workload.global_batch, pricer.topology.largest, of.layout
    inside = min(island, used)
    tps = sorted({tp for tp in (ours.tp, inside, 1, *(powers(inside) if cps == [1] else ())) if tp <= min(of.max_tp, used)})
    found = []
    for cp, tp in product(cps, tps):
        pp = min(ours.pp, used // (cp * tp))
        if pp and (dp := min(used // (cp * tp * pp), batch)):
            layout = Layout(dp=dp, pp=pp, cp=cp, tp=tp, sp=tp > 1)
            kept = replace(layout, vpp=ours.vpp, schedule=ours.schedule) if pp == ours.pp else layout
            found.append(fitted(pricer, kept))
    return [c for c in found if c]


def _finding(of: Study, pairs: list[tuple[Point, Point]]) -> str:
    both = [(w, c) for w, c in pairs if w.step_s is not None and c.step_s is not None]
    wins = next(((w, c) for w, c in pairs if c.step_s is not None and (w.step_s is None or c.step_s < w.step_s)), None)
    if wins is None:
        if not both:
            return f"{of.layout.size} devices hold no two layouts to compare"
        whole, cut = both[-1]
        return (
            f"up to {tokens(int(whole.x))} tokens cp does not pay: {whole.label} {seconds(whole.step_s or 0.0)}, "
            f"{cut.label} {seconds(cut.step_s or 0.0)}"
        )
    whole, cut = wins
    against = f"{seconds(whole.step_s)} for {whole.label}" if whole.step_s is not None else whole.note
    note = f" ({cut.note})" if cut.note else ""
    return f"cp pays from {tokens(int(cut.x))} tokens on: {seconds(cut.step_s or 0.0)} for {cut.label}{note}, {against}"


def _short(candidate: Candidate | None) -> str:
    if candidate is None:
        return "-"
    layout = candidate.layout
    return " ".join(f"{axis}{getattr(layout, axis)}" for axis in ("dp", "pp", "cp", "tp") if getattr(layout, axis) > 1) or "1 device"


def tokens(length: int) -> str:
    """A number of tokens, in 1,024s where it is a multiple."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
