"""How much longer each term of a step takes than predicted, from rows of observed and predicted seconds.

    log observed = log( offset + sum over terms of m(term) · predicted(term) ) + noise           log m ~ normal(prior)

The most likely m, by Gauss-Newton steps. A row that is far off loses weight (Huber, Robust Estimation of a Location Parameter,
1964), so that a few bad windows move little. What is believed fades from window to window, so that drift is followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RELATIVE_NOISE = 0.03
"""Of a phase's mean: formulas err by that much from one layout to another."""
ABSOLUTE_NOISE = 0.001
"""Of the step: what is smaller says nothing."""
HUBER = 1.345
HARDLY = 1e-2
"""Weight of what was believed while rows are compared with each other."""
ITERATIONS = 25
DRIFT = 0.05
"""By how much a multiplier may move from one window to the next."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A multiplier: its most likely value, and the standard deviation of its logarithm."""

    value: float
    spread: float


Beliefs = Mapping[str, Belief]
"""By term."""


@dataclass(frozen=True, slots=True)
class Row:
    """One observed phase: its seconds, those predicted by term, seconds that no term explains, and the step that it is part of."""

    observed_s: float
    predicted_s: Mapping[str, float]
    step_s: float
    offset_s: float = 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm; an offset is known no better than anything else."""
        small = ABSOLUTE_NOISE * self.step_s / self.observed_s
        return math.hypot(RELATIVE_NOISE, small, RELATIVE_NOISE * self.offset_s / self.observed_s)


def update(prior: Beliefs, rows: Sequence[Row]) -> dict[str, Belief]:
    """What to believe after some rows. A term of which no row says anything stays as it was."""
    terms = [term for term in prior if any(row.predicted_s.get(term, 0.0) > 0 for row in rows)]
    if not terms:
        return dict(prior)
    x = np.array([[row.predicted_s.get(term, 0.0) for term in terms] for row in rows])
    offset, noise = np.array([row.offset_s for row in rows]), np.array([row.noise for row in rows])
    y = np.log([row.observed_s for row in rows])
    start = np.log([prior[term].value for term in terms])
    precision = np.diag([1.0 / prior[term].spread ** 2 for term in terms])
    theta, weights = start.copy(), 1.0 / noise**2
    for iteration in range(2 * ITERATIONS):
        jacobian, residual = _linear(theta, x, offset, y)
        # Which rows are far off is for the rows to say, not for what was believed before.
        among_rows = iteration < ITERATIONS
        if among_rows:
            weights = _huber(residual / noise) / noise**2
        belief = precision * (HARDLY if among_rows else 1.0)
        posterior = jacobian.T @ (weights[:, None] * jacobian) + belief
        gradient = jacobian.T @ (weights * residual) - belief @ (theta - start)
        theta = theta + np.clip(np.linalg.solve(posterior, gradient), -1.0, 1.0)
    spreads = np.sqrt(np.diag(np.linalg.inv(posterior)))
    found = {t: Belief(float(math.exp(v)), float(s)) for t, v, s in zip(terms, theta, spreads, strict=True)}
    return {term: found.get(term, belief) for term, belief in prior.items()}


def faded(known: Beliefs, prior: Beliefs) -> dict[str, Belief]:
    """What is still believed a window later: as likely, but less certain, though never less than at first."""
    return {term: Belief(b.value, min(math.hypot(b.spread, DRIFT), max(prior[term].spread, DRIFT))) for term, b in known.items()}


def _linear(theta: Floats, x: Floats, offset: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Derivatives of the logarithm of what is predicted, and what is left of the observed one."""
    parts = x * np.exp(theta)
    total = offset + parts.sum(axis=1)
    return parts / total[:, None], y - np.log(total)


def _huber(standardised: Floats) -> Floats:
    return np.minimum(1.0, HUBER / np.maximum(np.abs(standardised), 1e-12))
