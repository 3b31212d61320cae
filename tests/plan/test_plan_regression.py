"""Multipliers are found by regression: within 5% of the truth, whatever a few bad windows say, and where there is none, as before."""

import math

import numpy as np
import pytest

from rayplane.plan.measured.regression import DRIFT, Belief, Row, faded, update

TRUE = {"compute": 1.3, "host": 0.6, "tp": 2.0, "p2p": 1.7}
PRIOR = {term: Belief(1.0, 0.4) for term in (*TRUE, "cp")}


def rows(rng, count=8, noise=0.02, true=TRUE):
    """Phases of some stages, as the multipliers make them, each off by a little."""
    out = []
    for _ in range(count):
        compute, host, tp, p2p, idle = rng.uniform(0.5, 2.0, 5) * (1.0, 0.4, 0.3, 0.2, 0.2)
        observed = (
            ({"compute": compute, "host": host}, 0.0),
            ({"compute": 2 * compute, "host": host / 2}, 0.0),
            ({"tp": tp}, 0.0),
            ({"p2p": p2p}, idle),
        )
        for predicted, offset in observed:
            seconds = offset + sum(true[term] * s for term, s in predicted.items())
            out.append(Row(seconds * math.exp(rng.normal(0, noise)), predicted, step_s=4.0, offset_s=offset))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_known_multipliers_are_found_within_5_percent(seed):
    found = update(PRIOR, rows(np.random.default_rng(seed), count=16))
    for term in ("compute", "tp", "p2p"):
        assert found[term].value == pytest.approx(TRUE[term], rel=0.05), term
    assert found["host"].value == pytest.approx(TRUE["host"], rel=0.15)
    assert math.isclose(update(PRIOR, rows(np.random.default_rng(seed), 64, 0.0))["host"].value, TRUE["host"], rel_tol=0.05)


def test_what_no_row_is_about_stays_as_it_was():
    found = update(PRIOR, rows(np.random.default_rng(0)))
    assert found["cp"] == PRIOR["cp"]
    assert update(PRIOR, []) == PRIOR


def test_a_few_rows_that_are_far_off_move_little():
    rng = np.random.default_rng(1)
    good = rows(rng, count=16)
    bad = [Row(r.observed_s * 10, r.predicted_s, r.step_s, r.offset_s) if i % 7 == 0 else r for i, r in enumerate(good)]
    found = update(PRIOR, bad)
    for term in ("compute", "tp", "p2p"):
        assert found[term].value == pytest.approx(TRUE[term], rel=0.05), term


def test_more_rows_are_more_certain_and_small_phases_less():
    few, many = (update(PRIOR, rows(np.random.default_rng(2), count=n))["tp"].spread for n in (2, 32))
    assert many < few / 2 < PRIOR["tp"].spread
    small = [Row(r.observed_s, r.predicted_s, 1000 * r.step_s, r.offset_s) for r in rows(np.random.default_rng(2), count=2)]
    assert update(PRIOR, small)["tp"].spread > 2 * few


def test_drift_is_followed():
    """A term that takes 5% longer in each window is believed to within 5% of what it has become."""
    rng, known = np.random.default_rng(3), dict(PRIOR)
    for window in range(20):
        now = {**TRUE, "tp": 2.0 * 1.05**window}
        known = update(faded(known, PRIOR), rows(rng, true=now))
    assert known["tp"].value == pytest.approx(2.0 * 1.05**19, rel=0.05)
    assert known["compute"].value == pytest.approx(TRUE["compute"], rel=0.05)


def test_without_news_certainty_fades_but_not_beyond_the_beginning():
    known = {"tp": Belief(2.0, 0.01)}
    for _ in range(3):
        known = faded(known, PRIOR)
    assert known["tp"].value == 2.0
    assert known["tp"].spread == pytest.approx(math.sqrt(0.01**2 + 3 * DRIFT**2))
    for _ in range(1000):
        known = faded(known, PRIOR)
    assert known["tp"].spread == PRIOR["tp"].spread
