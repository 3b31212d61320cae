"""Drawing tokens from logits, each by one uniform number, many rows at once.

temperature 0   the most likely token
else            p = softmax(logits / temperature) ─▶ top_k ─▶ top_p of what is left ─▶ min_p ─▶ the first token whose cumulative
                share passes u

Only rows that leave tokens out are sorted, and of them only the KEPT most likely tokens while those suffice.

R rows   V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rayplane.serve.sampling import SamplingParams

Tensor = torch.Tensor

KEPT, MORE = 1024, 8
"""Most likely tokens that are looked at first, and how many times as many next, until those left out cannot count."""
LANE = 128
"""Shares are added up in lanes of so many before the one is found in which a token lies."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What the rows ask for, as columns."""

    temperature: Tensor
    top_k: Tensor
    """V for all."""
    top_p: Tensor
    min_p: Tensor
    limited: Tensor
    """Whether top_k leaves any out."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab: int) -> Draws:
        """One row for each; those of temperature 0 are of no interest here."""
        return cls(
            torch.tensor([p.temperature for p in params], dtype=torch.float32),
            torch.tensor([min(p.top_k or vocab, vocab) for p in params]),
            torch.tensor([p.top_p for p in params], dtype=torch.float64),
            torch.tensor([p.min_p for p in params], dtype=torch.float64),
            torch.tensor([0 < p.top_k < vocab for p in params]),
        )

    def rows(self, index: Tensor) -> Draws:
        """Some of them."""
        return Draws(self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index], self.limited[index])

    @property
    def restricted(self) -> Tensor:
        """Whether a row draws from fewer than all tokens."""
        return (self.top_p < 1) | (self.min_p > 0) | self.limited


def draw(logits: Tensor, params: Sequence[SamplingParams], u: NDArray[np.float64]) -> list[int]:  # [R, V], R numbers in [0, 1)
    """A token for each row. Logits are fp32."""
    hot = torch.tensor([i for i, p in enumerate(params) if p.temperature > 0], dtype=torch.int64)
    if not len(hot):
        return logits.argmax(-1).tolist()
    chosen = logits.argmax(-1) if len(hot) < len(params) else torch.empty(len(params), dtype=torch.int64)
    draws = Draws.of([params[i] for i in hot.tolist()], logits.shape[-1])
    scaled = logits[hot] / draws.temperature[:, None]
    chosen[hot] = _by_share(scaled, draws, torch.from_numpy(u)[hot])
    return chosen.tolist()


def _by_share(scaled: Tensor, draws: Draws, u: Tensor) -> Tensor:
    vocab = scaled.shape[-1]
    chosen = torch.empty(len(scaled), dtype=torch.int64)
    some, every = draws.restricted.nonzero().flatten(), (~draws.restricted).nonzero().flatten()
    if len(every):
        chosen[every] = _inverse_in_lanes(scaled[every].softmax(-1), u[every])
    kept = min(vocab, int(draws.top_k[some].clamp(max=KEPT).max())) if len(some) else 0
    while len(some):
        order, shares, enough = _nucleus(scaled[some], draws.rows(some), kept)
        drawn = order.gather(1, _inverse(shares, u[some])[:, None]).flatten()
        chosen[some[enough]] = drawn[enough]
        some, kept = some[~enough], min(vocab, MORE * max(kept, KEPT))
    return chosen


def _nucleus(scaled: Tensor, draws: Draws, kept: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `kept` most likely tokens of each row in order, their shares (0 of what is left out), and whether no token beyond counts."""
    top, order = scaled.topk(kept, -1)
    shares = (top - scaled.logsumexp(-1, keepdim=True)).double().exp()
    rank = torch.arange(kept)[None]
    shares = shares * (rank < draws.top_k[:, None])
    whole = torch.where(draws.top_k <= kept, shares.sum(-1), 1.0)[:, None]
    before = shares.cumsum(-1) - shares
    inside = (before < draws.top_p[:, None] * whole) & (shares >= draws.min_p[:, None] * shares[:, :1]) & (shares > 0)
    inside[:, 0] = True
    enough = ~inside[:, -1] | (draws.top_k <= kept) | (kept == scaled.shape[-1])
    return order, shares * inside, enough


def _inverse_in_lanes(shares: Tensor, u: Tensor) -> Tensor:  # [R, V], [R] -> [R]
    """The same as `_inverse`, for many shares."""
    rest = -shares.shape[-1] % LANE
    lanes = (F.pad(shares, (0, rest)) if rest else shares).unflatten(-1, (-1, LANE))
    sums = lanes.sum(-1).double()
    lane = _inverse(sums, u)
    total = sums.cumsum(-1)
    row = torch.arange(len(u))
    within = u * total[:, -1] - (total - sums)[row, lane]
    inside = lanes[row, lane].double()
    return lane * LANE + _inverse(inside, (within / inside.sum(-1)).clamp(0.0, 1.0))


def _inverse(shares: Tensor, u: Tensor) -> Tensor:  # [R, n], [R] -> [R]
    """The place at which the cumulative share passes u; never one without a share."""
    total = shares.cumsum(-1)
    place = torch.searchsorted(total, (u[:, None] * total[:, -1:]).contiguous(), right=True).flatten()
    last = shares.shape[-1] - 1 - (shares > 0).flip(-1).int().argmax(-1)
    return torch.minimum(place, last)
