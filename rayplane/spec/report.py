"""What ranks tell their owner: of each step of training, and once a second of serving."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.spec.layout import Layout

PHASES = ("data", "forward", "backward", "recv_wait", "tp", "cp", "dp", "optimizer", "host")
"""Where a rank's time in a step goes; the seconds of all phases sum to the step's wall time."""

COMPUTE_PHASES = frozenset({"forward", "backward"})
COMM_PHASES = frozenset({"tp", "cp", "dp"})


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one rank did in one step. `loss` is the mean over the tokens of the whole global batch, equal on every rank."""

    rank: int
    replica: int
    stage: int
    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    """Tokens of the global batch."""
    wall_s: float
    phases: dict[str, float]
    comm_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes this rank sent, by mesh axis."""
    memory_bytes: int = 0
    """Peak memory of the rank so far (resident set on CPU, allocated on CUDA)."""


@dataclass(frozen=True, slots=True)
class ServedReport:
    """What one rank of a replica has done since its last report."""

    rank: int
    replica: str
    stage: int
    steps: int
    tokens: int
    """Of prompts and answers, computed in those steps."""
    wall_s: float
    phases: dict[str, float]
    """They sum to the wall time; `recv_wait` is the time without work too."""
    comm_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes this rank sent, by mesh axis."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a rank's time in one phase, in seconds from the moment at which its trace begins."""

    phase: str
    action: str
    """The Action that it belongs to, as it prints; empty outside of the Action list."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All that one rank did in one step, in order; its stretches leave no gap."""

    rank: int
    step: int
    layout: Layout
    host: str
    start_unix_s: float
    """When this rank left the barrier at which its trace begins, by the clock of its host."""
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class StageUse:
    """How a stage spent its time, as shares of wall time that sum to 1 with `other` (data and host)."""

    replica: int
    stage: int
    compute: float
    wait: float
    comm: float
    optimizer: float
    other: float


def stage_use(replica: int, stage: int, seconds: dict[str, float]) -> StageUse:
    """Fold seconds by phase (summed over a stage's ranks and some steps) into shares."""
    wall = sum(seconds.values()) or 1.0
    share = {p: seconds.get(p, 0.0) / wall for p in PHASES}
    compute, comm = sum(share[p] for p in COMPUTE_PHASES), sum(share[p] for p in COMM_PHASES)
    wait, optimizer = share["recv_wait"], share["optimizer"]
    return StageUse(replica, stage, compute, wait, comm, optimizer, share["data"] + share["host"])
