"""Bytes that one microbatch leaves on the fullest rank of a tp group until its backward, part by part.

A layer keeps, per token of a rank, of width h (hidden), q, kv and f (feed-forward) on this rank; t is tp under sp, else 1:

recompute    none        4h/t + 3q + 3kv + 3f            inputs of two norms and their results, of which sp keeps a rank's rows and
             selective   4h/t + 2q + 2kv + 3f            gathers them again; qkv, rotated q and k, attention's output; gate, up and
             full        h/t                             product (without a gate 2f); and one layer's whole at a time
halves       W needs     2h/t + 2h + 2q + 2kv + 3f       inputs and output gradients of the four matrices

(Korthikanti et al., 2022, section 4.) Systems that do otherwise (`Practice`) keep besides: of a norm in single operations 3h/t more, of
an activation in single operations f, of unfused attention its scores, of dropout its masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.plan.step.compute import ITEM_BYTES, WIDE, Microbatch

LOGIT_BYTES = {"fp32": 8, "bf16": 10, "fp8": 10, "fp4": 10}
SLICE_ELEMENTS = 1 << 22
"""So many logits exist at a time (`model.loss`; a test holds the two equal)."""
SCORE_BYTES = {"unfused": (2, 3), "eager": (8, 3)}
"""Kept of a score without flash attention, and with dropout."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes on the fullest tp rank that one microbatch takes, and what is there once."""

    layer: int
    again: int
    """A layer of which something is computed again in backward."""
    half: int
    """Of a layer between the two halves of its backward."""
    residual: int
    activation: int
    workspace: int
    """The layer that is being computed again."""
    logits: int


def kept(work: Microbatch) -> Kept:
    """Of a microbatch."""
    layer, again = layer_bytes(work.without_recompute), layer_bytes(work)
    return Kept(layer, again, half_bytes(work), work.residual_bytes, work.activation_bytes, layer - again, logit_bytes(work))


def logit_bytes(work: Microbatch) -> int:
    """Of the logits that exist at a time."""
    elements = work.tokens * work.loss_rows
    if work.practice.logit_bytes:
        return work.practice.logit_bytes * elements
    return LOGIT_BYTES[work.precision] * min(elements, max(SLICE_ELEMENTS, work.share.vocab_rows))


def layer_bytes(work: Microbatch) -> int:
    """What one layer keeps of a microbatch for its backward."""
    share, practice, item = work.share, work.practice, ITEM_BYTES[work.precision]
    if work.recompute == "full":
        return work.residual_bytes
    if work.recompute == "selective" and practice.selective_products:
        elements = 2 * share.q_width + share.kv_width + share.mlp_width
        return 2 * work.residual_bytes + elements * item * work.tokens
    core = work.recompute == "none"
    turned = core and work.model.positions == "rope" and practice.keeps_projected
    rotated = share.q_width + share.kv_width if turned else 0
    inner = 1 + work.up_matrices + (work.model.act == "swiglu" and not practice.fused)
    elements = 2 * share.q_width + 2 * share.kv_width + rotated + inner * share.mlp_width
    # Over cp the ring keeps keys and values once more, and its result in fp32.
    ring = 2 * share.kv_width * item + 4 * share.q_width if work.cp > 1 and core else 0
    stream = 4 + (0 if practice.fused_norms else 6) + (1 if practice.dropout else 0)
    # Below bf16 the inputs of the products are kept as they are computed with: in a byte.
    narrow = work.residual_bytes + (share.q_width + share.mlp_width) * work.tokens if work.precision in WIDE else 0
    return stream * work.residual_bytes + (elements * item + ring) * work.tokens - narrow + (_scores_bytes(work) if core else 0)


def half_bytes(work: Microbatch) -> int:
    """What one layer keeps between the two halves of its backward."""
    share = work.share
    elements = 2 * work.model.hidden + 2 * share.q_width + 2 * share.kv_width + (1 + work.up_matrices) * share.mlp_width
    return 2 * work.residual_bytes + elements * work.tokens * ITEM_BYTES[work.precision]


def _scores_bytes(work: Microbatch) -> int:
    """Of scores that pass through memory."""
    if work.practice.attention not in SCORE_BYTES:
        return 0
    plain, dropped = SCORE_BYTES[work.practice.attention]
    scores = work.share.q_width // work.model.head_dim * work.seq_len * work.tokens
    return scores * (plain + (dropped if work.practice.dropout else 0))
