"""Which GPUs of a node each stage on it gets, once Ray has said which the job has there: in the order of their ranks.

Ray gave      stage 0: GPUs 2, 3        stage 1: GPUs 1, 0
dealt         stage 0: GPUs 0, 1        stage 1: GPUs 2, 3

Ray hands bundles the GPUs of a node in any order, and knows nothing of which are neighbours; the job has the same ones either way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hand:
    """The ranks of a stage actor, its node, and the GPUs that Ray gave it; none on a CPU."""

    ranks: tuple[int, ...]
    node_id: str
    gpus: tuple[str, ...]


def deal(hands: Sequence[Hand]) -> list[tuple[str, ...]]:
    """The GPUs of each, as many as it has ranks; none where it had none."""
    out: list[tuple[str, ...]] = [()] * len(hands)
    for node_id in {hand.node_id for hand in hands}:
        here = sorted((i for i, hand in enumerate(hands) if hand.node_id == node_id), key=lambda i: hands[i].ranks)
        gpus = sorted((gpu for i in here for gpu in hands[i].gpus), key=_number)
        for i in here:
            count = len(hands[i].gpus)
            out[i], gpus = tuple(gpus[:count]), gpus[count:]
    return out


def _number(gpu: str) -> tuple[int, str]:
    """What is no number, as a MIG instance's uuid, comes last."""
    return (int(gpu), "") if gpu.isdigit() else (sys.maxsize, gpu)
