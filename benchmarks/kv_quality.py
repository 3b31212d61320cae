"""What a smaller KV cache costs in quality: python benchmarks/kv_quality.py [--json] [--tokens 16384] [--context 1024]

Perplexity of SmolLM2-135M on the Python language reference as pydoc carries it (pydoc_data.topics), with keys and values kept in each
dtype: with weights and activations in fp32, so that the cache is all that differs, and in bf16, as it is served.

    perplexity = exp(mean of -log p(token | the tokens before it in its window))

Windows of `context` tokens are read side by side, STEP tokens of each at a time; all that a token attends to comes out of the cache.
JSON by model dtype and cache dtype: perplexity, change (share, against the largest dtype of that model), max_logit_change (of the first
step), bytes_per_token.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pydoc_data.topics
from collections.abc import Iterator

import torch
from serve_weights import PATH

from rayplane.comm.clock import PhaseClock
from rayplane.comm.communicator import Communicator
from rayplane.comm.ledger import Ledger
from rayplane.kernels.native import load
from rayplane.model.cache import cache_spec, heads_of, make_cache
from rayplane.model.layers import Place
from rayplane.model.lowered import Capacity, LoweredChunk
from rayplane.model.paged import PagedStep
from rayplane.model.parameter import GradWork
from rayplane.model.transformer import ModelChunk
from rayplane.model.weights import open_weights
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model, model_folder
from rayplane.train.gguf_tokenizer import read_gguf_tokenizer

Tensor = torch.Tensor
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CACHES = {"fp32": ("fp32", "bf16", "int8", "fp8"), "bf16": ("bf16", "int8", "fp8")}
"""By model dtype; the first is what the others are held against."""
BLOCK, STEP, WINDOWS = 16, 64, 8
"""Tokens of a block; tokens of a window in a step; windows side by side."""
SECTION = ModelSection(path=PATH)


def text_tokens(number: int) -> Tensor:
    """The first tokens of the text."""
    folder = model_folder(SECTION)
    assert folder is not None
    topics = pydoc_data.topics.topics
    ids = read_gguf_tokenizer(folder)[0].encode("\n\n".join(topics[name] for name in sorted(topics))).ids
    assert len(ids) >= number, f"the text has {len(ids)} tokens"
    return torch.tensor(ids[:number])


def model_of(spec: ModelSpec, dtype: str, cache: str, context: int) -> LoweredChunk:
    """The whole model on one rank, with room for WINDOWS windows."""
    folder = model_folder(SECTION)
    assert folder is not None
    source = open_weights(folder, spec)
    alone = [Communicator(axis, 0, 1, None, Ledger(), PhaseClock(), axis) for axis in ("tp", "cp")]
    place = Place(*alone, GradWork(defer=False), DTYPES[dtype])
    chunk = ModelChunk(place, spec, range(spec.layers), first=True, last=True)
    with torch.no_grad():
        for weight in chunk.weights():
            for part, view in weight.views(weight.data):
                view.copy_(source.read(part.tensor.name, part.chunk))
    caches = make_cache(cache_spec(cache, BLOCK, DTYPES[dtype]), heads_of(spec, 1, 0), spec.layers, WINDOWS * context // BLOCK)
    rows = WINDOWS * STEP
    return LoweredChunk(chunk, spec, place, caches, Capacity(rows, rows, context, torch.get_num_threads()), load())


def step_of(windows: Tensor, before: int) -> PagedStep:
    """The next STEP tokens of windows [W, context] that have `before` in the cache, and a row of logits for each."""
    number, blocks = len(windows), windows.shape[1] // BLOCK
    tables = torch.arange(number * blocks, dtype=torch.int32).view(number, blocks)
    positions = torch.arange(before, before + STEP).repeat(number)
    owner = torch.arange(number).repeat_interleave(STEP)
    slots = (owner * blocks + positions // BLOCK) * BLOCK + positions % BLOCK
    starts = torch.arange(0, number * STEP + 1, STEP, dtype=torch.int32)
    lengths = torch.full((number,), before + STEP, dtype=torch.int32)
    tokens = windows[:, before : before + STEP].reshape(-1)
    return PagedStep(tokens, positions, slots, starts, lengths, tables, torch.arange(number * STEP))


def logits_of(model: LoweredChunk, tokens: Tensor, context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits [W, STEP, vocabulary], the tokens that they are of [W, STEP], -1 behind a window's end) step by step."""
    for windows in tokens.view(-1, context).split(WINDOWS):
        after = torch.cat((windows[:, 1:], torch.full((len(windows), 1), -1)), 1)
        for before in range(0, context, STEP):
            logits = model.forward(step_of(windows, before))
            yield logits.view(len(windows), STEP, -1), after[:, before : before + STEP]


def measure(spec: ModelSpec, dtype: str, cache: str, tokens: Tensor, context: int) -> tuple[float, Tensor]:
    """(perplexity, the first step's logits)."""
    model, total, count, first = model_of(spec, dtype, cache, context), 0.0, 0, None
    for logits, targets in logits_of(model, tokens, context):
        first = logits.clone() if first is None else first
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        total, count = total + loss.item(), count + int((targets >= 0).sum())
    assert first is not None
    return math.exp(total / count), first


def compare(spec: ModelSpec, dtype: str, tokens: Tensor, context: int) -> dict[str, dict[str, float]]:
    """A model dtype's caches."""
    results: dict[str, dict[str, float]] = {}
    base, base_logits = 0.0, torch.empty(0)
    for cache in CACHES[dtype]:
        perplexity, logits = measure(spec, dtype, cache, tokens, context)
        if not results:
            base, base_logits = perplexity, logits
        num_bytes = cache_spec(cache, BLOCK, DTYPES[dtype]).block_bytes(heads_of(spec, 1, 0), spec.layers) // BLOCK
        change, worst = perplexity / base - 1, (logits - base_logits).abs().max().item()
        results[cache] = {
            "perplexity": round(perplexity, 4),
            "change": round(change, 6),
            "max_logit_change": round(worst, 4),
            "bytes_per_token": num_bytes,
        }
        print(f"{dtype:6} {cache:6} {perplexity:11.4f} {change:+10.4%} {worst:10.4f} {num_bytes:10}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--context", type=int, default=1024, help=f"tokens of a window, a multiple of {STEP}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    spec, tokens = load_model(SECTION), text_tokens(args.tokens // args.context * args.context)
    print(f"{'model':6} {'cache':6} {'perplexity':>11} {'change':>10} {'max logit':>10} {'B/token':>10}")
    results = {dtype: compare(spec, dtype, tokens, args.context) for dtype in CACHES}
    if args.json:
        print(json.dumps({"tokens": len(tokens), "context": args.context, **results}))


if __name__ == "__main__":
    main()
