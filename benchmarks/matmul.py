"""oneDNN against torch's BLAS for the reference model's matrix products on one core: python benchmarks/matmul.py [--json]

GFLOP/s, the best of some runs of each, taken in turn.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from reference import SEQ_LEN, SPEC

from rayplane.model.matmul import add_product, linear

WIDTH, KV = SPEC.heads * SPEC.head_dim, SPEC.kv_heads * SPEC.head_dim
SHAPES = {
    "qkv": (WIDTH + 2 * KV, SPEC.hidden),
    "o": (SPEC.hidden, WIDTH),
    "gate_up": (2 * SPEC.mlp, SPEC.hidden),
    "down": (SPEC.hidden, SPEC.mlp),
    "head": (SPEC.vocab, SPEC.hidden),
}


def best(functions: dict[str, Callable[[], object]], flops: float, rounds: int) -> dict[str, float]:
    """The fastest of `rounds` runs of each function, in turn, as GFLOP/s."""
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return {name: round(flops / s / 1e9, 1) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    tokens = 2 * SEQ_LEN
    print(
        f"{'weight':8} {'':>14} {'forward':>16} {'input gradient':>22} {'weight gradient':>18}\n{'':24}"
        + f" {'oneDNN':>8} {'BLAS':>8}" * 3
    )
    for name, (rows, columns) in SHAPES.items():
        x, w, dy = torch.randn(tokens, columns), torch.randn(rows, columns), torch.randn(tokens, rows)
        flops = 2.0 * tokens * rows * columns
        forward = best({"onednn": lambda x=x, w=w: linear(x, w), "blas": lambda x=x, w=w: x @ w.t()}, flops, args.rounds)
        backward = best({"onednn": lambda dy=dy, w=w: linear(dy, w.t()), "blas": lambda dy=dy, w=w: dy @ w}, flops, args.rounds)
        grad = torch.zeros(rows, columns)
        ways = {"onednn": lambda g=grad, dy=dy, x=x: add_product(g, dy.t(), x), "blas": lambda g=grad, dy=dy, x=x: g.addmm_(dy.t(), x)}
        weight = best(ways, flops, args.rounds)
        results[name] = {"shape": [rows, columns], "forward": forward, "input_grad": backward, "weight_grad": weight}
        figures = [way[kernel] for way in (forward, backward, weight) for kernel in ("onednn", "blas")]
        print(f"{name:8} {f'{rows} x {columns}':>15} " + " ".join(f"{figure:8}" for figure in figures))
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
