"""What a rank keeps under each level of ZeRO, and for how long the rest is there."""

from __future__ import annotations

import pytest

from rayplane.spec.layout import Layout
from rayplane.train.flat import is_there
from rayplane.train.gradients import UNDER_WAY
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, tiny

SPEC = tiny(tied=False, heads=4, kv_heads=4)
FP32 = 4


def kept(layout, tmp_path):
    """Bytes of (weights, gradients, one moment) in each rank's memory behind a step."""

    job = section(tmp_path)

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        rank.step(drain=False)
        buckets = [b for g in rank._gradients.values() for b in g.buckets]
        for g in rank._gradients.values():
            g.whole()
        params = {x.untyped_storage().data_ptr(): x.untyped_storage().size() for b in buckets for x in (b.params, b.params_share)}
        grads = {x.untyped_storage().data_ptr(): x.untyped_storage().size() for b in buckets for x in (b.grads, b.grads_share)}
        moments = sum(p.data.numel() * FP32 for p in rank.optimizer.tensors() if p.name.startswith("exp_avg/"))
        return sum(params.values()), sum(grads.values()), moments

    return run_ranks(cut(SPEC, layout), body)


@pytest.mark.parametrize(
    ("layout", "shares"),
    [
        (Layout(dp=3, micro_batch=2), (1, 1, 1)),
        (Layout(dp=3, zero=1, micro_batch=2), (1, 1, 3)),
        (Layout(dp=3, zero=2, micro_batch=2), (1, 3, 3)),
        (Layout(dp=3, zero=3, micro_batch=2), (3, 3, 3)),
        (Layout(dp=4, zero=3, shard=2, micro_batch=2), (2, 2, 2)),
        (Layout(dp=2, cp=2, zero=3, micro_batch=2), (4, 4, 4)),
    ],
)
def test_each_level_cuts_one_more_kind_of_state(layout, shares, tmp_path):
    """But for the rows that do not divide, and the gaps between aligned weights."""
    whole = SPEC.num_params * FP32
    for rank in kept(layout, tmp_path):
        for held, share in zip(rank, shares, strict=True):
            assert held == pytest.approx(whole / share, rel=0.005 if share == 1 else 0.15)


@pytest.mark.parametrize("zero", [2, 3])
def test_no_more_than_three_buckets_of_gradients_are_whole(zero, tmp_path, monkeypatch):
    """The two that are being reduced, and the one that is being filled."""
    monkeypatch.setattr("rayplane.train.flat.BUCKET_BYTES", 6000)
    job = section(tmp_path)

    def body(mesh):
        rank, whole = make_rank(SPEC, job, mesh), []
        (gradients,) = rank._gradients.values()
        added = gradients.added
        gradients.added = lambda weight: (added(weight), whole.append(sum(is_there(b.grads) for b in gradients.buckets)))
        rank.step(drain=False)
        return len(gradients.buckets), max(whole), sum(is_there(b.grads) for b in gradients.buckets)

    for buckets, most, after in run_ranks(cut(SPEC, Layout(dp=2, zero=zero, micro_batch=2)), body):
        assert (buckets > 8, most, after) == (True, UNDER_WAY + 1, 0)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_zero3_has_two_modules_weights_at_a_time(recompute, tmp_path):
    """The one at work and the one that comes next, in forward, backward and recomputation."""

    job = section(tmp_path)

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        modules = [m for m, _ in rank.chunks[0].units()]
        presence = rank.presence
        there = []
        gathering, closing = presence.open, presence.close

        def look():
            held = {w for b in presence.buckets() if is_there(b.params) for w in b.weights}
            there.append([i for i, m in enumerate(modules) if not held.isdisjoint(m.parameters())])

        presence.open = lambda module, backward: (gathering(module, backward), look())
        presence.close = lambda module: (closing(module), look())
        rank.step(drain=False)
        return there

    there = run_ranks(cut(SPEC, Layout(dp=2, zero=3, micro_batch=4, recompute=recompute)), body)[0]
    last = SPEC.layers + 2
    """Units: embedding, layers, norm, head."""
    forward = [[n, n + 1] if n < last else [n] for n in range(last + 1)]
    assert there[: 2 * last + 2 : 2] == forward
    backward = [[n - 1, n] if n > 1 else [n] for n in range(last - 1, 0, -1)]
    assert there[2 * last + 2 :: 2] == backward
    assert there[-1] == []
