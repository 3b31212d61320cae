"""Serving speed beside other engines, in alternation: python benchmarks/serve_peers.py [--json] [--rounds 3] [--layouts] [--quick]

bf16 SmolLM2-135M, one system's server at a time on all cores, the load generator beside it: distinct prompts of 128 tokens, 64 tokens
out, temperature 0, no end before that, at concurrency 1, 8 and 32. A run with an error, with too few tokens, or of a server that cannot
count on (1, 2, 3 …) is an error, not a figure. After the first round only those peers go on that are near the best at some concurrency.

case          columns                                             ratios
c1 c8 c32     every system                                        ratio_best: rayplane's tokens/s over the best peer's
layouts       rayplane as one process, pp2, tp2, dp2              ratio_one: over one process on the same cores

Peers that are not installed are skipped, with the reason; see README.md on how to install them, each in an environment of its own:
--peer-python vllm=/path/to/python llamacpp=/path/to/python.

JSON by case, and by column of it: tok_s, and ttft_p50, ttft_p99, itl_p50, itl_p99 in ms (medians over rounds), cpu_s of the server and
other_cpu_s of what else ran on the machine. ratio_best is the median over rounds, best_peer its name, ratio_ttft_p99 and ratio_itl_p99
ours over that peer's. `outside`: where rayplane's time goes at the highest concurrency, see serve_outside.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_load_generator import FIGURES, Generator, check_answer
from serve_outside import Outside, look
from serve_processes import Running, end_in_order
from serve_systems import START_S, SYSTEMS, Fields, Servers
from serve_weights import prepare
from systems import RunError

LAYOUTS: dict[str, Fields] = {"one": {"dp": 1}, "pp2": {"pp": 2, "dp": 1}, "tp2": {"tp": 2, "dp": 1}, "dp2": {"dp": 2}}
OURS, ONE = "rayplane", "one"
NEAR = 0.85
"""Share of the best peer's tokens/s that a peer needs at some concurrency to be measured in further rounds."""
Row = dict[str, float]


@dataclass(slots=True)
class Column:
    """One server's runs: by concurrency, a row a round."""

    name: str
    system: str
    layout: Fields | None = None
    rows: defaultdict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    start_s: list[float] = field(default_factory=list)

    def tok_s(self, concurrency: int) -> list[float]:
        """By round."""
        return [row["tok_s"] for row in self.rows[concurrency]]

    def median(self, concurrency: int) -> Row:
        """Of every figure over the rounds."""
        rows = self.rows[concurrency]
        return {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}


class Comparison:
    """Starts the servers one after the other, round by round."""

    def __init__(self, servers: Servers, generator: Generator, concurrency: list[int]):
        self._servers, self._generator, self._concurrency = servers, generator, concurrency
        self.errors: dict[str, str] = {}
        self.outside: list[tuple[str, Outside]] = []

    def run(self, columns: list[Column], rounds: int) -> None:
        """All columns; one that fails, or is far from the best peer, takes no further part."""
        for number in range(rounds):
            near = [c for c in columns if number == 0 or c.system == OURS or self._is_near(c, columns)]
            for column in near:
                if column.name not in self.errors:
                    self._measure(column)

    def _is_near(self, column: Column, columns: list[Column]) -> bool:
        """Whether a peer was near the best one at some concurrency."""
        peers = [c for c in columns if c.system != OURS]
        best = {n: max((max(c.tok_s(n), default=0.0) for c in peers), default=0.0) for n in self._concurrency}
        return any(max(column.tok_s(n), default=0.0) > NEAR * best[n] for n in self._concurrency)

    def _measure(self, column: Column) -> None:
        try:
            with self._servers.start(column.system, column.layout) as server:
                server.wait(SYSTEMS[column.system].ready, START_S)
                column.start_s.append(round(server.start_s, 1))
                check_answer(server)
                for concurrency in self._concurrency:
                    self._load(column, server, concurrency)
        except RunError as error:
            self.errors[column.name] = str(error)
            print(f"{column.name:14} failed: {error}", flush=True)

    def _load(self, column: Column, server: Running, concurrency: int) -> None:
        extra = SYSTEMS[column.system].extra
        ours = column.name in (OURS, ONE) and concurrency == max(self._concurrency)
        before = look(server) if ours else None
        row = self._generator.run(server, concurrency, extra)
        if before is not None:
            self.outside.append((column.name, look(server).since(before)))
        column.rows[concurrency].append(row)
        figures = " ".join(f"{row[name]:9.1f}" for name in FIGURES)
        print(f"{column.name:14} {concurrency:4} {figures} {row['cpu_s']:9.1f} {row['other_cpu_s']:8.1f}", flush=True)


def case(columns: list[Column], concurrency: int) -> Fields:
    """A concurrency's figures of all systems."""
    measured = [c for c in columns if c.rows[concurrency]]
    result: Fields = {c.name: c.median(concurrency) for c in measured}
    ours = next((c for c in measured if c.name == OURS), None)
    peers = [c for c in measured if c.name != OURS]
    if ours and peers:
        best = max(peers, key=lambda c: c.median(concurrency)["tok_s"])
        result |= {"best_peer": best.name, **_ratio("ratio_best", ours.tok_s(concurrency), best.tok_s(concurrency))}
        for name in ("ttft_p99", "itl_p99"):
            result[f"ratio_{name}"] = round(result[OURS][name] / result[best.name][name], 3)
    return result


def layouts(columns: list[Column], concurrencies: list[int]) -> Fields:
    """rayplane's layouts beside its one process."""
    result: Fields = {}
    one = next(c for c in columns if c.name == ONE)
    for concurrency in concurrencies:
        measured = [c for c in columns if c.rows[concurrency]]
        of = result[f"c{concurrency}"] = {c.name: c.median(concurrency) for c in measured}
        for column in measured:
            if column is not one and one.rows[concurrency]:
                of[column.name] |= _ratio("ratio_one", column.tok_s(concurrency), one.tok_s(concurrency))
    return result


def _ratio(key: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    ratios = [round(a / b, 3) for a, b in zip(ours, theirs, strict=False)]
    return {key: round(statistics.median(ratios), 3), key.replace("ratio", "ratios"): ratios}


def show(results: Fields) -> None:
    """The ratios in words."""
    for name, of in results.items():
        if isinstance(of, dict) and "ratio_best" in of:
            tails = f"p99 of first tokens {of['ratio_ttft_p99']}, of gaps {of['ratio_itl_p99']}"
            print(f"{name}: {of[OURS]['tok_s']} tokens/s, {of['ratio_best']} times {of['best_peer']}'s; {tails}")
    for name, of in results.get("layouts", {}).items():
        print(f"layouts {name}: " + ", ".join(f"{k} {v['tok_s']} ({v.get('ratio_one', 1)})" for k, v in of.items()))


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of all systems")
    parser.add_argument("--only", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS), help="systems to run")
    parser.add_argument("--concurrency", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--layouts", action="store_true", help="rayplane's layouts too")
    parser.add_argument("--quick", action="store_true", help="one round with few requests: a look, no measurement")
    parser.add_argument("--loadgen", type=Path, default=Generator.DEFAULT, help="the load generator's script")
    parser.add_argument("--models", type=Path, help="folder to keep the peers' forms of the model in; a temporary one when left out")
    parser.add_argument("--peer-python", nargs="*", default=[], metavar="SYSTEM=PATH", help="interpreters of systems")
    return parser.parse_args()


def main() -> None:
    end_in_order()
    args = options()
    if not args.loadgen.is_file():
        raise SystemExit(f"skipped: there is no load generator at {args.loadgen}; name one with --loadgen")
    rounds = 1 if args.quick else args.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = prepare(args.models or folder)
        servers = Servers(models, folder, dict(item.split("=", 1) for item in args.peer_python))
        versions, skipped = installed(servers, args.only)
        columns = [Column(system, system) for system in versions]
        of_layouts = [Column(name, OURS, layout) for name, layout in LAYOUTS.items()] if args.layouts and OURS in versions else []
        print(f"{'column':14} {'at 1':>4} " + " ".join(f"{n:>9}" for n in FIGURES) + f" {'server CPU s':>9} {'other':>5}", flush=True)
        comparison = Comparison(servers, Generator(args.loadgen, models.hf, args.quick), args.concurrency)
        comparison.run([*columns, *of_layouts], rounds)
    results: Fields = {"versions": versions, "skipped": skipped, "errors": comparison.errors}
    results |= {f"c{concurrency}": case(columns, concurrency) for concurrency in args.concurrency}
    results |= {"layouts": layouts(of_layouts, args.concurrency)} if of_layouts else {}
    results["start_s"] = {c.name: c.start_s for c in (*columns, *of_layouts)}
    results["outside"] = [{"column": name, **outside.shares()} for name, outside in comparison.outside]
    show(results)
    if args.json:
        print(json.dumps(results))


def installed(servers: Servers, wanted: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(versions of the systems that can run, reasons why others cannot)."""
    versions, skipped = {}, {s: "not asked for" for s in SYSTEMS if s not in wanted}
    for system in wanted:
        try:
            versions[system] = servers.version(system)
        except RunError as error:
            skipped[system] = str(error)
            print(f"{system}: skipped, {error}", flush=True)
    return versions, skipped


if __name__ == "__main__":
    main()
