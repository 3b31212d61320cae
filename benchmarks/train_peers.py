"""Training speed of the reference model beside other systems, in alternation: python benchmarks/train_peers.py [--json] [--rounds 3]

case     layout                                          ideal
serial   one device, microbatches of 2                   the fastest of all systems
pp2      two stages, 8 microbatches of 2                 twice the fastest serial
tp2      each layer on two ranks, microbatches of 4      twice the fastest serial
dp2      two replicas, microbatches of 4                 twice the fastest serial

All start from the same weights, see the same samples, and run on CPUs over gloo with one thread a rank. A column whose losses differ
from plain torch's (on one device, where that is run) is an error, not a figure. Where a system has several ways (schedules, ZeRO), each
is a column (see columns.py), and after the first round only those near the best go on.

Peers that are not installed are skipped: pip install torchtitan==0.3.0 triton | megatron-core==0.19.2 triton | deepspeed==0.19.8 (for
Megatron-Core on Python 3.11 with --ignore-requires-python). They may live in environments of their own:
--peer-python megatron=/path/to/python deepspeed=/path/to/python.

JSON by case: rayplane (its best column, named in rayplane_way), each column's tokens/s, ratio_best (rayplane over the best peer, median
over rounds), of_ideal, peak_gb of each rank, grown_gb (that without what imports took), phases (seconds of a step by phase).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from columns import CASES, Column, Fields
from systems import DISTRIBUTIONS, Bench, Run, RunError, samples_of, task

TOLERANCE = 1e-4
"""Largest difference of a loss from plain torch's."""


@dataclass(slots=True)
class Measured:
    """The runs of a column, one a round while it is near the best."""

    column: Column
    runs: list[Run] = field(default_factory=list)

    @property
    def tokens_s(self) -> float:
        """Median over rounds."""
        return statistics.median(run.tokens_s for run in self.runs)

    @property
    def ours(self) -> bool:
        """Whether it is rayplane's."""
        return self.column.system == "rayplane"


class Comparison:
    """Runs cases in alternation and keeps what later cases are held against: the expected losses and the fastest serial run."""

    def __init__(self, bench: Bench, args: argparse.Namespace, missing: dict[str, str]):
        self._bench, self._args, self._missing = bench, args, missing
        self._losses: tuple[float, ...] = ()
        self._serial: dict[str, float] = {}

    def compare(self, name: str) -> Fields:
        """All columns of a case, round by round."""
        columns = [c for c in CASES[name]() if c.system not in self._missing]
        if not self._losses:
            # Plain torch first: its losses are what the others must have.
            columns.sort(key=lambda c: c.system != "torch")
        measured, errors = [Measured(c) for c in columns], {}
        for number in range(self._args.rounds):
            for entry in list(_near(measured, self._args.near)) if number else list(measured):
                try:
                    entry.runs.append(self._run(entry.column))
                except RunError as error:
                    errors[entry.column.name] = str(error)
                    measured.remove(entry)
                    print(f"{name:7} {entry.column.name:28} failed: {error}", flush=True)
                    continue
                run = entry.runs[-1]
                peaks = " ".join(f"{gb:.2f}" for gb in run.peak_gb)
                print(f"{name:7} {entry.column.name:28} {run.tokens_s:8.1f} {run.cpu_s:10.2f}   {peaks}", flush=True)
        if name == "serial":
            self._serial = {m.column.system: m.tokens_s for m in measured}
        return self._result(name, measured, errors)

    def _run(self, column: Column) -> Run:
        run = self._bench.run(column.system, task(self._bench.folder, self._args.warmup, self._args.steps, **column.fields))
        self._losses = self._losses or run.losses
        worst = max(abs(a - b) for a, b in zip(run.losses, self._losses, strict=True))
        if not worst <= TOLERANCE:
            raise RunError(f"its losses {run.losses} differ by {worst:.1e} from {self._losses}")
        return run

    def _result(self, name: str, measured: list[Measured], errors: dict[str, str]) -> Fields:
        ours, peers = [m for m in measured if m.ours], [m for m in measured if not m.ours]
        if not ours:
            return {"errors": errors}
        best, scale = max(ours, key=lambda m: m.tokens_s), 1 if name == "serial" else 2
        return {
            "rayplane": round(best.tokens_s, 1),
            "rayplane_way": best.column.words,
            **{m.column.name: round(m.tokens_s, 1) for m in measured if m.column.name != "rayplane"},
            **_ratio("best", best, [m for m in peers if not m.column.given_cut]),
            **_ratio("best_cut", best, [m for m in peers if m.column.given_cut]),
            "of_ideal": self._share(best.tokens_s, scale, list(self._serial)),
            "of_own_ideal": self._share(best.tokens_s, scale, ["rayplane"]),
            "rounds": {m.column.name: [round(r.tokens_s, 1) for r in m.runs] for m in measured},
            "cpu_s": {m.column.name: round(statistics.median(r.cpu_s for r in m.runs), 2) for m in measured},
            "peak_gb": {m.column.name: [round(gb, 3) for gb in m.runs[0].peak_gb] for m in measured},
            "grown_gb": {m.column.name: _grown(m.runs[0]) for m in measured},
            "phases": {m.column.name: m.runs[-1].phases for m in ours},
            "errors": errors,
        }

    def _share(self, tokens_s: float, scale: int, systems: list[str]) -> float | None:
        """Of `scale` times the fastest serial run of some systems; None where none was measured in this call."""
        ideal = scale * max((self._serial.get(system, 0.0) for system in systems), default=0.0)
        return round(tokens_s / ideal, 3) if ideal else None


def _near(measured: list[Measured], near: float) -> Iterator[Measured]:
    """The columns worth another round: those near the best of their kind (rayplane's, peers', peers' with the planner's cut)."""
    for kind in ((True, False), (False, False), (False, True)):
        same = [m for m in measured if (m.ours, m.column.given_cut) == kind]
        fastest = max((m.tokens_s for m in same), default=0.0)
        yield from (m for m in same if m.tokens_s >= near * fastest)


def _ratio(key: str, ours: Measured, peers: list[Measured]) -> Fields:
    """rayplane over the best of some peers, round by round."""
    if not peers:
        return {}
    peer = max(peers, key=lambda m: m.tokens_s)
    ratios = [round(a.tokens_s / b.tokens_s, 3) for a, b in zip(ours.runs, peer.runs, strict=False)]
    return {f"ratio_{key}": round(statistics.median(ratios), 3), f"ratios_{key}": ratios, f"{key}_peer": peer.column.name}


def _grown(run: Run) -> list[float]:
    """Peak memory of each rank beyond what its imports took."""
    return [round(peak - base, 3) for peak, base in zip(run.peak_gb, run.base_gb, strict=True)]


def show(name: str, result: Fields) -> None:
    """A case's outcome, and where rayplane's time goes."""
    if "rayplane" not in result:
        return
    words = [f"{result['rayplane']} tokens/s", f"{result['of_ideal']} of ideal, {result['of_own_ideal']} of its own"]
    words += [f"{result[f'ratio_{k}']} times {result[f'{k}_peer']}" for k in ("best", "best_cut") if f"ratio_{k}" in result]
    print(f"{name:7} {result['rayplane_way']}: {'; '.join(words)}")
    for column, ranks in result["phases"].items():
        for rank, phases in enumerate(ranks):
            total = sum(phases.values())
            shares = "  ".join(f"{phase} {seconds / total:.1%}" for phase, seconds in phases.items())
            print(f"        {column}, rank {rank}: {total:.2f} s a step: {shares}")
    print(flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of all systems")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per run")
    parser.add_argument("--warmup", type=int, default=1, help="untimed steps per run")
    parser.add_argument("--near", type=float, default=0.95, help="share of the best that a column needs for further rounds")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="cases to run; without serial there is no ideal")
    parser.add_argument("--systems", nargs="*", choices=list(DISTRIBUTIONS), default=list(DISTRIBUTIONS), help="systems to run")
    parser.add_argument("--peer-python", nargs="*", default=[], metavar="SYSTEM=PATH", help="interpreters of systems")
    return parser.parse_args()


def main() -> None:
    args = options()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), dict(item.split("=", 1) for item in args.peer_python))
        bench.prepare(samples_of(args.warmup + args.steps))
        missing, versions = {s: "not asked for" for s in DISTRIBUTIONS if s not in args.systems}, {}
        for system in args.systems:
            try:
                versions[system] = bench.version(system)
            except RunError as error:
                missing[system] = str(error)
                print(f"{system}: skipped, {error}")
        print(f"{'case':7} {'column':28} {'tokens/s':>8} {'CPU s/step':>10}   peak GB by rank", flush=True)
        comparison, results = Comparison(bench, args, missing), {"versions": versions, "skipped": missing}
        for name in args.only or CASES:
            results[name] = comparison.compare(name)
            show(name, results[name])
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
