"""How a serving engine runs its steps, as far as times show it. The defaults are rayplane's.

mixed            a step takes every running sequence's next token, and fills up to `chunk` tokens with prompts
prefill first    while prompts wait, a step takes prompts only; who decodes waits, and all that waited go on together

The planner prices rayplane. Held against what others measured (`benchmarks/published_serving.py`), it needs to know what they did.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """Habits of a serving engine."""

    chunk: int = 8192
    """Tokens of a step."""
    max_sequences: int = 1024
    prefill_first: bool = False
    reserve: float = 0.0
    """Share of a sequence's output for which there must be room before it is admitted; below 1 it may be put off later."""
    memory_share: float = 0.9
    """Of a device, for weights, workspace and cache."""
    balanced: bool = False
    """Whether the stage with the head has fewer layers, so that none waits for it; else each has as many."""
    launch_us: float = 500.0
    """Host's time to launch a layer of a step with prompts; steps that only decode are replayed from a graph."""
    step_s: float = 0.8e-3
    """Scheduler, batch and sampler, beside or before the model."""
    sequence_s: float = 30e-6
    """More of that for each sequence."""
    overlapped: bool = True
    """Whether that runs beside the model of the step before."""
    token_s: float = 55e-6
    """From sampler to socket, for each token, one after the other in a process of their own, beside the model."""
    request_s: float = 25e-3
    """From socket to scheduler and back for the first token: HTTP, tokenizer, queues."""
    prompt_token_s: float = 1e-6
    """More of that for each token of the prompt."""


RAYPLANE = Engine(balanced=True)
