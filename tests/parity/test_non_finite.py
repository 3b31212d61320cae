"""A loss or gradient that is not a number stops every rank with the same words: rank, step, microbatch."""

import math

import pytest
import torch

from rayplane.errors import NonFiniteError
from rayplane.spec.layout import Layout
from rayplane.train.stage import Stage
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, tiny

SPEC = tiny(tied=False)
LAYOUT = cut(SPEC, Layout(dp=2, pp=2, micro_batch=1))


def messages(tmp_path, spoil):
    """What each rank says when `spoil` has been let loose on it before its second step."""

    job = section(tmp_path)

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        rank.step(drain=False)
        before = [w.detach().clone() for w in rank.weights]
        spoil(rank, mesh)
        with pytest.raises(NonFiniteError) as error:
            rank.step(drain=False)
        unchanged = all(torch.equal(a, b) for a, b in zip(before, rank.weights, strict=True))
        return str(error.value), unchanged

    return run_ranks(LAYOUT, body)


def test_bad_loss_names_rank_step_and_microbatch(tmp_path, monkeypatch):
    """The third microbatch of replica 1 meets a target whose logit is infinite."""
    forward = Stage._forward

    def poisoned(stage, action, microbatch, scale):
        bad = stage._mesh.coord.dp == 1 and action.microbatch == 2 and stage._mesh.clock.step_two
        forward(stage, action, microbatch, math.inf if bad else scale)

    def spoil(rank, mesh):
        mesh.clock.step_two = True

    monkeypatch.setattr(Stage, "_forward", poisoned)
    monkeypatch.setattr("rayplane.comm.clock.PhaseClock.step_two", False, raising=False)
    for message, _ in messages(tmp_path, spoil):
        assert "the loss is not finite at step 2, rank 3, microbatch 2" in message


def test_bad_gradient_names_the_rank_and_changes_nothing(tmp_path):
    def spoil(rank, mesh):
        if mesh.rank == 0:
            finish = rank._gradients[0].finish

            def poisoned():
                finish()
                rank.weights[-1].main_grad[0] = math.nan

            rank._gradients[0].finish = poisoned

    for message, unchanged in messages(tmp_path, spoil):
        assert "the gradient is not finite at step 2 (first on rank 0)" in message
        assert unchanged, "the optimizer must not have stepped"
