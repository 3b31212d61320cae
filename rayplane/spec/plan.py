"""The planner's answer as values: what it predicts of a layout, where each stage goes, and what it decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import TrainSection
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction with its reasons. Times in seconds per step, memory in bytes on the fullest rank."""

    step_s: float
    tokens_s: float
    mfu: float
    bubble: float
    """Idle share of the pipe: 1 - busy / (stages x step time of the pipe)."""
    time_s: dict[str, float]
    """Seconds on the slowest stage by term: compute, tp, cp, p2p, dp, optimizer, bubble."""
    memory: dict[str, int]
    """Bytes by term: weights, gradients, optimizer, activations, logits, fixed."""
    memory_bytes: int
    verdict: str
    """fits, tight (above 90% of the device) or does not fit."""
    stage_s: tuple[float, ...] = ()
    """Compute seconds of one microbatch, forward and backward, by stage."""
    stage_kinds: tuple[str, ...] = ()
    """Kind of device by stage, where stages are on several."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout that was refused, and why."""

    layout: Layout
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that could run, with its price."""

    layout: Layout
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one stage actor lives: a stage of a replica, or the part of it that one node holds."""

    replica: int
    stage: int
    part: int
    ranks: tuple[int, ...]
    node: str
    island: str


@dataclass(frozen=True, slots=True)
class Placement:
    """(replica, stage, part) -> node and island, for every stage actor."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's whole answer. Layout `boundaries` are set; `runners_up` are in order of predicted speed."""

    layout: Layout
    num_microbatches: int
    placement: Placement
    estimate: Estimate
    cluster: ClusterSpec
    runners_up: tuple[Candidate, ...] = ()
    rejected: Sequence[Rejected] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """What a training step has to do, as the planner and the runtime need it."""

    global_batch: int
    seq_len: int
    precision: str
    offload: bool = False
    """Whether the optimizer's state is in the host's memory."""

    @classmethod
    def of(cls, train: TrainSection) -> Workload:
        """What a job asks for."""
        return cls(train.global_batch, train.data.seq_len, train.precision, train.optimizer.offload)
