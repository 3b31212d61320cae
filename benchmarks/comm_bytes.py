"""What a training step sends on each mesh axis, measured and in closed form: python benchmarks/comm_bytes.py [--json]

Each row is one step of a small model under a layout, its ranks as threads. The ledger's bytes, summed over all ranks, are set against
the formula, which is evaluated as it is printed (elements of 4 bytes). A difference of a byte is an error.

    p ranks on the axis      B samples, of S tokens each      m microbatches      L layers      H hidden      V vocabulary
    k KV heads of D          N weights, each padded to 16     E those of the embedding and the head
    r copies of each share (shard: p is the ranks that share)

A ring's all-gather or reduce-scatter of n elements sends (p-1)·n in all, an all-reduce twice that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import CheckpointSection, DataSection, OptimizerSection, SourceSection, TrainSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank
from rayplane.train.threads import run_ranks

ELEMENT_BYTES, ALIGNMENT = 4, 16
NARROW = ModelSpec(layers=4, hidden=32, heads=8, kv_heads=4, head_dim=8, mlp=48, vocab=64)
GROUPED = ModelSpec(layers=3, hidden=40, heads=8, kv_heads=2, head_dim=10, mlp=72, vocab=100)
ODD = ModelSpec(layers=4, hidden=24, heads=9, kv_heads=3, head_dim=8, mlp=50, vocab=61)
TIED = replace(NARROW, tied=True)
NAMES = {NARROW: "8 heads, 4 KV", GROUPED: "8 heads, 2 KV", ODD: "9 heads, 3 KV", TIED: "tied"}

# The terms that rows have in common. A layer of tp: two all-reduces of the residual stream each way; the ends: the embedding's output
# and the head's input gradient; the loss: three numbers a token. Under sp the same in halves, and two more gathers in backward.
TP = "2·(p-1)·((4·L+2)·B·S·H + 3·B·S)"
SP = "(p-1)·((10·L+4)·B·S·H + 6·B·S + 2·(2·L+1)·H)"
SHARED_KV = " + 2·(p-1)·L·2·k·D·H"
RING, GATHER = "L·(3·p-2)·2·k·D·B·S", "L·3·(p-1)·2·k·D·B·S"


@dataclass(frozen=True, slots=True)
class Row:
    """One layout of one model. `formula` counts the elements that all ranks send on `axes`."""

    what: str
    spec: ModelSpec
    layout: Layout
    axes: tuple[str, ...]
    formula: str
    global_batch: int = 4
    seq_len: int = 12

    @property
    def shape(self) -> str:
        """Layout, model and batch in words."""
        return f"{self.layout}, {NAMES[self.spec]}, {self.global_batch} x {self.seq_len}"

    @property
    def closed_form_bytes(self) -> int:
        """The formula's value."""
        return int(eval(self.formula.replace("·", "*"), {}, self._names())) * ELEMENT_BYTES

    def _names(self) -> dict[str, int]:
        spec, layout = self.spec, self.layout
        weights, ends = padded(spec)
        degree = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "world": layout.size, "tied": 2}
        share = layout.shard_size if layout.zero else layout.dp * layout.cp
        return {
            "p": degree.get(self.axes[0], share),
            "r": layout.dp * layout.cp // share,
            "m": layout.num_microbatches(self.global_batch),
            "v": layout.vpp,
            "B": self.global_batch,
            "S": self.seq_len,
            "L": spec.layers,
            "H": spec.hidden,
            "V": spec.vocab,
            "k": spec.kv_heads,
            "D": spec.head_dim,
            "N": weights,
            "E": ends,
        }


def padded(spec: ModelSpec) -> tuple[int, int]:
    """Elements of all weights as the model fuses them (q with k and v, gate with up), each padded; and of embedding and head."""
    sizes = {t.name: t.numel for t in spec.tensors()}
    for i in range(spec.layers):
        sizes[f"layers.{i}.q"] += sizes.pop(f"layers.{i}.k") + sizes.pop(f"layers.{i}.v")
        sizes[f"layers.{i}.gate"] += sizes.pop(f"layers.{i}.up")
    whole = {name: -(-n // ALIGNMENT) * ALIGNMENT for name, n in sizes.items()}
    return sum(whole.values()), whole["embed"] + whole.get("head", 0)


def inside_a_layer() -> Iterator[Row]:
    """tp, sp and cp."""
    yield Row("TP", NARROW, Layout(tp=2), ("tp",), TP)
    yield Row("TP", NARROW, Layout(tp=4, micro_batch=2), ("tp",), TP, seq_len=7)
    yield Row("TP, a KV head on two ranks", ODD, Layout(tp=2, micro_batch=3), ("tp",), TP + SHARED_KV)
    # Computing again stops where backward has what it needs: before the sum behind the feed-forward.
    yield Row("TP, layers computed again", NARROW, Layout(tp=2, recompute="full"), ("tp",), TP.replace("4·L", "5·L"))
    yield Row("SP", NARROW, Layout(tp=2, sp=True), ("tp",), SP)
    yield Row("SP, uneven", NARROW, Layout(tp=4, sp=True, micro_batch=3), ("tp",), SP, seq_len=7)
    yield Row("SP, a KV head on two ranks", ODD, Layout(tp=2, sp=True), ("tp",), SP + SHARED_KV)
    for method, formula in (("ring", RING), ("gather", GATHER)):
        yield Row(f"CP {method}", NARROW, Layout(cp=2, cp_method=method), ("cp",), formula)
        yield Row(f"CP {method}", GROUPED, Layout(cp=4, cp_method=method, micro_batch=2), ("cp",), formula, seq_len=16)
        yield Row(f"CP {method}, uneven", ODD, Layout(cp=3, cp_method=method), ("cp",), formula, seq_len=13)


def between_stages() -> Iterator[Row]:
    """pp under every schedule, and a tied embedding at its two ends."""
    straight, looped, folded = "2·(p-1)·B·S·H", "2·(v·p-1)·B·S·H", "2·2·(p-1)·B·S·H"
    schedules = (("gpipe", 1, straight), ("1f1b", 1, straight), ("zb-h1", 1, straight), ("interleaved", 2, looped), ("zbv", 2, folded))
    for schedule, vpp, formula in schedules:
        yield Row(f"PP {schedule}", NARROW, Layout(pp=2, vpp=vpp, schedule=schedule), ("pp", "pp_back"), formula)
    yield Row("PP, uneven microbatches", ODD, Layout(pp=4, micro_batch=3), ("pp", "pp_back"), straight)
    yield Row("PP, tied embedding", TIED, Layout(pp=2), ("tied",), "2·V·H")


def between_replicas() -> Iterator[Row]:
    """dp with every stage of ZeRO, whole and over islands, and what all ranks agree on."""
    reduced, two, three = "2·(p-1)·N", "(m+1)·(p-1)·N", "m·(p-1)·(3·N-E)"
    yield Row("DP", NARROW, Layout(dp=2), ("dp",), reduced)
    yield Row("DP and CP", GROUPED, Layout(dp=2, cp=2, micro_batch=2), ("dp",), reduced)
    yield Row("ZeRO-1", NARROW, Layout(dp=4, zero=1), ("dp",), reduced)
    yield Row("ZeRO-2", NARROW, Layout(dp=2, zero=2), ("dp",), two)
    yield Row("ZeRO-2", GROUPED, Layout(dp=3, zero=2, micro_batch=2), ("dp",), two, global_batch=12)
    yield Row("ZeRO-3", NARROW, Layout(dp=2, zero=3), ("dp",), three)
    yield Row("ZeRO-3, layers computed again", GROUPED, Layout(dp=3, zero=3, recompute="full"), ("dp",), three, global_batch=6)
    # The first chunk's embedding is the head too: gathered for either, and in forward only.
    yield Row("ZeRO-3, tied embedding", TIED, Layout(dp=2, zero=3), ("dp",), "m·(p-1)·3·N")
    for zero, formula in ((1, reduced), (2, two), (3, three)):
        layout = Layout(dp=4, zero=zero, shard=2)
        yield Row(f"ZeRO-{zero} in islands of 2, within", NARROW, layout, ("shard",), f"r·{formula}", global_batch=8)
    yield Row("ZeRO-1 in islands of 2, across", NARROW, Layout(dp=4, zero=1, shard=2), ("replicate",), "2·(r-1)·N")
    yield Row("any layout, four numbers in fp64", NARROW, Layout(dp=2, tp=2), ("world",), "2·(p-1)·4·2")


def rows() -> list[Row]:
    """The whole table."""
    return [*inside_a_layer(), *between_stages(), *between_replicas()]


def measured_bytes(row: Row, folder: Path) -> int:
    """What the ledgers of all ranks count in the first step under the row's layout."""
    path = folder / f"tokens-{row.spec.vocab}.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).integers(0, row.spec.vocab, 1000).astype(np.uint16))
    section = TrainSection(
        data=DataSection(path=[SourceSection(path=str(path))], seq_len=row.seq_len),
        steps=1,
        global_batch=row.global_batch,
        optimizer=OptimizerSection(lr=1e-3),
        checkpoint=CheckpointSection(dir=str(folder)),
    )

    def step(mesh: Mesh) -> int:
        rank = TrainRank(row.spec, section, mesh, open_dataset(section.data, Path(), folder / "data", row.spec.vocab))
        sent = rank.step(drain=False)[0].comm_bytes
        return sum(sent.get(axis, 0) for axis in row.axes)

    boundaries = even_boundaries(row.spec.layers, row.layout.num_chunks)
    return sum(run_ranks(replace(row.layout, boundaries=boundaries), step))


def markdown() -> list[str]:
    """The table as docs/parallelism.md has it."""
    head = ["| sent by | layout, heads, samples x tokens | in elements of 4 bytes | bytes |", "|---|---|---|---|"]
    return head + [f"| {r.what} | {r.shape} | `{r.formula}` | {r.closed_form_bytes:,} |" for r in rows()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/parallelism.md and measure nothing")
    args = parser.parse_args()
    if args.markdown:
        print("\n".join(markdown()))
        return
    results: list[dict[str, Any]] = []
    print(f"{'sent by':34} {'layout, heads, samples x tokens':52} {'measured':>10} {'formula':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows():
            measured, expected = measured_bytes(row, Path(folder)), row.closed_form_bytes
            names = {"what": row.what, "shape": row.shape, "formula": row.formula}
            results.append({**names, "measured": measured, "closed_form": expected})
            mark = "" if measured == expected else "  DIFFERENT"
            print(f"{row.what:34} {row.shape:52} {measured:10,} {expected:10,}{mark}", flush=True)
    equal = sum(r["measured"] == r["closed_form"] for r in results)
    print(f"{equal} of {len(results)} rows equal to the byte")
    if args.json:
        print(json.dumps({"rows": results, "equal": equal == len(results)}))
    sys.exit(equal != len(results))


if __name__ == "__main__":
    main()
