"""What a stage keeps alive between Actions: the schedule's activations in flight, and no more."""

import pytest

from rayplane.spec.layout import Layout
from rayplane.train.stage import Stage

from .training import cut, make_rank, section, tiny
from .world import run_ranks

SPEC = tiny(tied=False)


@pytest.mark.parametrize(("schedule", "most_alive"), [("1f1b", [3, 2, 1]), ("gpipe", [8, 8, 8])])
def test_activations_are_freed_by_their_backward(schedule, most_alive, tmp_path, monkeypatch):
    """1F1B holds min(p - s, m) microbatches on stage s of p (Narayanan et al., 2021, section 2.2); GPipe holds all m."""
    alive = {}
    backward = Stage._backward

    def watched(stage, action):
        alive.setdefault(action.chunk, []).append(len(stage._outputs))
        backward(stage, action)

    monkeypatch.setattr(Stage, "_backward", watched)

    job = section(tmp_path)

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        rank.step(drain=False)
        stage = rank._stage
        return [len(kept) for kept in (stage._inputs, stage._outputs, stage._pipe._sends, stage._pipe._posted)]

    left = run_ranks(cut(SPEC, Layout(pp=3, micro_batch=1, schedule=schedule)), body)
    assert [max(alive[stage]) for stage in range(3)] == most_alive
    assert left == [[0, 0, 0, 0]] * 3, "nothing stays between steps"
