"""What a step costs beside the model: python benchmarks/scheduler.py [--json] [--steps 400]

All sequences decode, context 160 and growing, 16 tokens a block; a step is schedule, arrays, pack and update with made-up tokens.
The median of steps counts, in µs, by number of sequences.

schedule   which sequences, and blocks for them        arrays   the numbers that the ranks get
pack       one flat buffer of them                     update   tokens kept, ends found, outputs made
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.outputs import Sampled
from rayplane.serve.packing import pack
from rayplane.serve.request import Request
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.scheduler import Scheduler

PROMPT = 160
SIZES = (1, 8, 32, 256)
PARTS = ("schedule", "arrays", "pack", "update")


def scheduler_of(num_sequences: int, steps: int, num_drafts: int) -> Scheduler:
    """A scheduler whose sequences have all read their prompts."""
    context = PROMPT + (steps + 2) * (num_drafts + 1) + 16
    blocks = num_sequences * (-(-context // 16) + 2)
    limits = SchedulerLimits(
        blocks, context, max_sequences=num_sequences, max_batch_tokens=2**18, prefill_tokens=2**17, num_drafts=num_drafts
    )
    scheduler = Scheduler(limits, frozenset({0}))
    for i in range(num_sequences):
        prompt = tuple(1 + (i * 7919 + j * j * 31) % 40_000 for j in range(PROMPT))
        scheduler.add(Request(str(i), prompt, SamplingParams(max_tokens=context)))
    batch = scheduler.schedule(0.0)
    assert batch is not None and len(batch.sequences) == num_sequences
    scheduler.update(batch, [Sampled((1,)) for _ in batch.sampled])
    return scheduler


def measure(num_sequences: int, steps: int, num_drafts: int) -> dict[str, float]:
    """µs of each part of a step, and of all of it."""
    scheduler = scheduler_of(num_sequences, steps, num_drafts)
    spent: dict[str, list[float]] = {part: [] for part in (*PARTS, "step")}
    for step in range(steps):
        sampled = [Sampled((1 + (i * 97 + step * step) % 40_000,)) for i in range(num_sequences)]
        times_s = [time.perf_counter()]
        batch = scheduler.schedule(float(step))
        times_s.append(time.perf_counter())
        assert batch is not None
        arrays = scheduler.arrays(batch)
        times_s.append(time.perf_counter())
        pack(arrays)
        times_s.append(time.perf_counter())
        scheduler.update(batch, sampled)
        times_s.append(time.perf_counter())
        for part, start_s, end_s in zip((*PARTS, "step"), (*times_s[:-1], times_s[0]), (*times_s[1:], times_s[-1]), strict=True):
            spent[part].append(1e6 * (end_s - start_s))
    return {part: statistics.median(us) for part, us in spent.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--drafts", type=int, default=0, help="tokens guessed ahead, all of them wrong")
    args = parser.parse_args()
    results = {size: measure(size, args.steps, args.drafts) for size in SIZES}
    if args.json:
        print(json.dumps({f"sequences_{size}": {f"{part}_us": us for part, us in row.items()} for size, row in results.items()}))
        return
    print("sequences" + "".join(f"{part + ' µs':>13}" for part in (*PARTS, "step")))
    for size, row in results.items():
        print(f"{size:>9}" + "".join(f"{us:>13.1f}" for us in row.values()))


if __name__ == "__main__":
    main()
