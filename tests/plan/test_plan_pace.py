"""Ranks that compute slower than planned: found, cut by, and priced with; and memory that turned out to be too little."""

from dataclasses import replace

import pytest

from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.measured.correct import Job, correct, with_beliefs
from rayplane.plan.measured.pace import Paces, paces, priced
from rayplane.plan.measured.shortfall import shortfall, with_fixed_bytes
from rayplane.plan.step.fit import fitted
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout
from rayplane.spec.observation import Observation, RankMeans
from rayplane.spec.plan import Workload
from tests.plan.profiles import MODEL

FOUR = homogeneous({"here": 4}, "cpu", 10**10, {})
WORKLOAD = Workload(16, 256, "fp32")
PRICER = Pricer(MODEL, WORKLOAD, FOUR)


def observed(layout, paces):
    """What ranks report that compute at these paces."""
    draft = PRICER.draft(PRICER.outline(layout))
    ranks = []
    for rank in range(layout.size):
        coord, rounds = layout.coord(rank), draft.outline.rounds
        own = [draft.stages.compute[c] for c in layout.chunks_of_stage(coord.pp)]
        forward, backward = (rounds * paces[rank] * sum(s) for s in ([c.forward for c in own], [c.backward for c in own]))
        ranks.append(RankMeans(coord.dp, coord.pp, rank, {"forward": forward, "backward": backward, "recv_wait": 0.1}, {}))
    return Observation(16, tuple(ranks))


def test_paces_are_found_whatever_the_correction_makes_of_the_rest():
    layout = PRICER.outline(Layout(dp=2, pp=2, micro_batch=2)).layout
    seen = observed(layout, (1.0, 3.0, 1.0, 1.2))
    job = Job(MODEL, WORKLOAD, layout)
    learned = with_beliefs(FOUR, correct(job, FOUR, [seen]).after)
    found = paces(job, learned, [seen])
    assert found.ranks[1] / found.ranks[0] == pytest.approx(3.0, rel=0.01)
    assert found.ranks[3] / found.ranks[2] == pytest.approx(1.2, rel=0.01)
    slow, fast = found.of_stages(layout)[1], found.of_stages(layout)[0]
    assert slow / fast == pytest.approx(3.0, rel=0.01)


def test_a_stage_goes_at_the_pace_of_its_slowest_rank_and_unknown_ranks_as_planned():
    at = Paces((1.0, 1.0, 2.0, 1.0))
    assert at.of_stages(Layout(pp=2, tp=2)) == (1.0, 2.0)
    assert at.of_stages(Layout(dp=2, pp=2)) == (2.0, 1.0)
    assert at.of_stages(Layout(pp=8)) == (1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("slow", [0, 1])
def test_boundaries_cut_by_pace_are_the_best_there_are(slow):
    at = Paces(tuple(3.0 if rank == slow else 1.0 for rank in range(2)))
    layout = Layout(pp=2, micro_batch=1)
    chosen = priced(PRICER, layout, at)
    every = [priced(PRICER, layout.but(boundaries=(n, MODEL.layers - n)), at) for n in range(MODEL.layers + 1)]
    assert chosen.estimate.step_s == pytest.approx(min(c.estimate.step_s for c in every), rel=0.03)
    assert chosen.layout.boundaries[slow] < chosen.layout.boundaries[1 - slow]


def test_ranks_at_the_planned_pace_change_no_price():
    layout = PRICER.outline(Layout(dp=2, pp=2, micro_batch=2)).layout
    plain = PRICER.price(PRICER.draft(PRICER.outline(layout)))
    assert priced(PRICER, layout, Paces()).estimate.step_s == pytest.approx(plain.step_s)
    assert priced(PRICER, layout.but(boundaries=()), Paces()).layout == layout


def test_what_ran_out_of_memory_and_all_that_needs_as_much_fits_no_more():
    failed = PRICER.outline(Layout(dp=4, micro_batch=4)).layout
    short = shortfall(PRICER, failed)
    wiser = Pricer(MODEL, WORKLOAD, with_fixed_bytes(FOUR, short.fixed_bytes, "fp32"))
    for micro_batch, fits in ((1, True), (2, True), (4, False)):
        outline = wiser.counted(wiser.outline(failed.but(micro_batch=micro_batch)))
        assert (outline.memory_bytes <= wiser.device_bytes) == fits
    assert wiser.price(wiser.draft(wiser.outline(failed))).step_s == pytest.approx(
        PRICER.price(PRICER.draft(PRICER.outline(failed))).step_s
    )
    assert short.said.startswith("dp4 mb4 was to need ") and " of 10.0 GB per device (weights " in short.said


def test_a_second_shortfall_teaches_more_and_never_less():
    first = shortfall(PRICER, Layout(dp=4, micro_batch=4, boundaries=(MODEL.layers,)))
    wiser = with_fixed_bytes(FOUR, first.fixed_bytes, "fp32")
    second = shortfall(Pricer(MODEL, WORKLOAD, wiser), Layout(dp=4, micro_batch=2, boundaries=(MODEL.layers,)))
    assert second.fixed_bytes > first.fixed_bytes
    assert with_fixed_bytes(wiser, 1, "fp32") == replace(wiser, profile=wiser.profile)


def test_corrections_that_a_running_job_learns_leave_nothing_behind():
    job = Job(MODEL, WORKLOAD, PRICER.outline(Layout(dp=2, pp=2, micro_batch=2)).layout)

    def kept(*seen):
        for pace in seen:
            correct(job, FOUR, [observed(job.layout, (pace,) * 4)])
        return fitted.cache_info().currsize

    assert kept(1.1, 1.2) == kept(1.3, 1.4, 1.5)
