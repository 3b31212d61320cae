"""How a training system executes a layout, as far as time and memory show it. The defaults are rayplane's.

The planner prices rayplane. Held against what others measured (`benchmarks/published_runs.py`), it needs to know what they did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Practice:
    """Habits of a training system."""

    attention: Literal["flash", "flash1", "flash2", "unfused", "eager"] = "flash"
    """flash: the newest kernel of the device; unfused: scores pass through memory, between fused kernels; eager: single operations."""
    fused: bool = True
    """Whether a rotation and a gated activation are one kernel each."""
    fused_norms: bool = True
    """The same of norms."""
    keeps_projected: bool = True
    """Whether q and k stay for backward as they were before their rotation, beside what attention gets."""
    dropout: bool = False
    """On attention's scores and on what is added to the residual stream."""
    fused_accumulation: bool = False
    """Whether products add to fp32 gradients themselves; else a kernel of its own does, once a microbatch."""
    calls_per_layer: int = 4
    """Collectives over dp for one layer's gradients or weights."""
    gradient_bytes: int = 4
    """Of a gradient that microbatches are added up in; 6 where one in bf16 is kept beside."""
    selective_products: bool = False
    """Whether selective recomputation keeps every other product and attention's output; else all but what attention computes."""
    regathered: bool = False
    """Whether under zero 3 a layer that is computed again gathers its weights for that, and once more for its backward."""
    gathered_copies: int = 0
    """Bytes per weight and microbatch under zero 3, besides what collectives move: copies into and out of their buffers."""
    dp_inside_pp: bool = False
    """Whether replicas of a stage are neighbours, rather than stages of a replica."""
    whole_reduction: bool = False
    """Whether under zero 1 all gradients are all-reduced, though each rank needs its share only."""
    reduce_bytes: int = 4
    """Of a gradient on its way over dp."""
    overlap_dp: bool = True
    """Whether gradients are reduced beside the last backward, and zero 3 gathers beside compute."""
    overlap_gather: bool = False
    """Whether under zero 1 and 2 the first forward begins before all of its chunk's weights are there."""
    overlap_tp: bool = True
    """Whether the backward's sums over tp run beside weight gradients."""
    overlap_cp: bool = False
    """Whether gradients of keys and values, in the activations' precision, travel beside attention's backward as keys and values do."""
    rolling: bool = False
    """Whether a stage begins its next step before the others end theirs, the norm of all gradients being checked afterwards and the
    step undone where it was too large (Qi et al., Zero Bubble, 2023, section 4)."""
    logit_bytes: int = 0
    """Kept of each logit of a microbatch until backward; 0 where the head's gradients are taken in forward, slice by slice."""
    gathered_logits: bool = False
    """Whether each tp rank has the logits of the whole vocabulary before it computes the loss."""


RAYPLANE = Practice()
