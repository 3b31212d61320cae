"""A job that runs otherwise than predicted corrects the predictions term by term, and the ranking with them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rayplane.errors import SpecError
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.measured.correct import Job, correct, prior_of, with_beliefs
from rayplane.plan.measured.regression import Belief
from rayplane.plan.step.terms import TERMS
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout
from rayplane.spec.observation import Observation, RankMeans
from rayplane.spec.plan import Workload
from tests.plan.profiles import MODEL

EIGHT = homogeneous({"here": 8}, "cpu", 10**10, {})
TWO = homogeneous({"here": 2}, "cpu", 10**10, {})
WORKLOAD = Workload(16, 256, "fp32")
TRUE = {"compute": 1.4, "tp": 1.8, "dp": 0.6, "cp": 1.0, "p2p": 1.0, "host": 1.4}


def job_under(layout, cluster=EIGHT):
    pricer = Pricer(MODEL, WORKLOAD, cluster)
    return Job(MODEL, WORKLOAD, pricer.outline(layout).layout)


def seen(job, true, cluster=EIGHT, noise=0.01, seed=0):
    """What the job's ranks would report where each term takes so many times as long."""
    rng, layout = np.random.default_rng(seed), job.layout
    pricer = Pricer(MODEL, WORKLOAD, with_beliefs(cluster, {t: Belief(m, 0.0) for t, m in true.items()}))
    draft = pricer.draft(pricer.outline(layout))
    stages, rounds, step_s = draft.stages, draft.outline.rounds, draft.step_s(pricer.orders)
    ranks = []
    for rank in range(layout.size):
        coord = layout.coord(rank)
        own = layout.chunks_of_stage(coord.pp)
        phases = {
            "forward": rounds * sum(stages.compute[c].forward for c in own),
            "backward": rounds * sum(stages.compute[c].backward for c in own),
            "tp": rounds * sum(stages.tp[c].total for c in own),
            "cp": rounds * sum(stages.cp[c].total for c in own),
            "dp": sum(rounds * stages.dp[c].total + stages.reduce_s[c] for c in own) + stages.sync_s,
            "optimizer": stages.optimizer_s,
        }
        phases["recv_wait"] = max(0.0, step_s - sum(phases.values()))
        noisy = {name: s * math.exp(rng.normal(0, noise)) for name, s in phases.items()}
        ranks.append(RankMeans(coord.dp, coord.pp, rank, noisy, {}))
    return Observation(10, tuple(ranks))


@pytest.mark.parametrize("layout", [Layout(dp=2, pp=2, tp=2, micro_batch=2), Layout(pp=4, tp=2, micro_batch=1)], ids=str)
def test_known_multipliers_are_found_within_5_percent(layout):
    job = job_under(layout)
    found = correct(job, EIGHT, [seen(job, TRUE)]).after
    for term in ("compute", "tp", *(["dp"] if layout.dp > 1 else [])):
        assert found[term].value == pytest.approx(TRUE[term], rel=0.05), term


def test_after_the_correction_the_step_is_the_one_that_was_observed():
    job = job_under(Layout(dp=2, pp=2, tp=2, micro_batch=2))
    observed = seen(job, TRUE, noise=0.0)
    corrected = with_beliefs(EIGHT, correct(job, EIGHT, [observed]).after)
    pricer = Pricer(MODEL, WORKLOAD, corrected)
    assert pricer.draft(pricer.outline(job.layout)).step_s(pricer.orders) == pytest.approx(observed.step_s, rel=0.03)


def test_a_slow_rank_does_not_slow_the_stage():
    job = job_under(Layout(dp=4, tp=2, micro_batch=2))
    observed = seen(job, TRUE)
    slow = replace(observed.ranks[3], phases={name: 5 * s for name, s in observed.ranks[3].phases.items()})
    ranks = (*observed.ranks[:3], slow, *observed.ranks[4:])
    found = correct(job, EIGHT, [replace(observed, ranks=ranks)]).after
    for term in ("compute", "tp", "dp"):
        assert found[term].value == pytest.approx(TRUE[term], rel=0.05), term


def test_transfers_that_take_longer_are_told_from_idle_time():
    """Activations over slow links make a part of the waiting that the pipe's own bubble does not explain."""
    links = replace(EIGHT.links, island=replace(EIGHT.links.island, gbytes_s=0.02))
    slow = replace(EIGHT, links=links)
    job = job_under(Layout(pp=4, dp=2, micro_batch=1), slow)
    true = {**dict.fromkeys(TERMS, 1.0), "p2p": 2.0}
    found = correct(job, slow, [seen(job, true, slow)]).after
    assert found["p2p"].value == pytest.approx(2.0, rel=0.15)
    assert found["compute"].value == pytest.approx(1.0, rel=0.03)


def test_without_an_observation_everything_is_as_before():
    job = job_under(Layout(dp=8, micro_batch=1))
    learned = correct(job, EIGHT, [Observation(0, (), ("no step was finished in the window",))])
    assert {b.value for b in learned.after.values()} == {1.0}
    assert learned.after == learned.before == prior_of(EIGHT, "fp32")
    assert learned.ignored == ("no step was finished in the window",)


def test_what_is_missing_is_not_corrected():
    job = job_under(Layout(dp=2, pp=2, tp=2, micro_batch=2))
    whole = seen(job, TRUE)
    ranks = tuple(replace(r, phases={n: s for n, s in r.phases.items() if n != "tp"}) for r in whole.ranks)
    learned = correct(job, EIGHT, [replace(whole, ranks=ranks)])
    assert learned.after["tp"] == learned.before["tp"]
    assert learned.seen["tp"] == 0
    assert learned.after["compute"].value == pytest.approx(TRUE["compute"], rel=0.05)


def test_corrections_go_on_from_those_before():
    """What the first window has taught is where the second begins, a little less certain."""
    job = job_under(Layout(dp=4, tp=2, micro_batch=2))
    first = correct(job, EIGHT, [seen(job, TRUE)]).after
    second = correct(job, with_beliefs(EIGHT, first), [seen(job, {**TRUE, "tp": 2.2}, seed=1)])
    assert second.before["tp"].value == first["tp"].value
    assert second.before["tp"].spread > first["tp"].spread
    third = correct(job, with_beliefs(EIGHT, second.after), [seen(job, {**TRUE, "tp": 2.2}, seed=2)])
    assert third.after["tp"].value == pytest.approx(2.2, rel=0.05)


def test_a_bad_window_is_not_the_rule():
    """In two of five windows something else ran on the machines."""
    job = job_under(Layout(dp=4, tp=2, micro_batch=2))
    windows = [seen(job, {t: (4.0 if n in (1, 3) else 1.0) * m for t, m in TRUE.items()}, seed=n) for n in range(5)]
    found = correct(job, EIGHT, windows).after
    for term in ("compute", "tp", "dp"):
        assert found[term].value == pytest.approx(TRUE[term], rel=0.05), term


def test_another_layout_than_the_observed_one_is_an_error():
    job, other = job_under(Layout(dp=8, micro_batch=2)), job_under(Layout(dp=4, tp=2, micro_batch=2))
    with pytest.raises(SpecError, match="8 ranks in 4 replicas of 1 stages, and dp8 mb2 has 8 in 8 of 1; write the layout"):
        correct(job, EIGHT, [seen(other, TRUE)])


def test_a_costly_term_changes_the_ranking():
    """Where gradients are seen to take 40 times as long over dp, the planner turns to another axis."""
    before = plan(MODEL, WORKLOAD, TWO, None)
    assert before.layout.dp == 2
    job = Job(MODEL, WORKLOAD, before.layout)
    learned = correct(job, TWO, [seen(job, {**dict.fromkeys(TERMS, 1.0), "dp": 40.0}, TWO)])
    after = plan(MODEL, WORKLOAD, with_beliefs(TWO, learned.after), None)
    assert after.layout.dp == 1
    (ours,) = (c.estimate for c in after.runners_up if c.layout.dp == 2)
    assert ours.time_s["dp"] > 20 * before.estimate.time_s["dp"]
