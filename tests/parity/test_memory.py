"""What a stage keeps alive between Actions: the schedule's activations in flight, and no more."""

import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.train.stage import Stage
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, tiny

SPEC = tiny(tied=False)


@pytest.mark.parametrize(("schedule", "most_alive"), [("1f1b", [3, 2, 1]), ("gpipe", [8, 8, 8])])
def test_activations_are_freed_by_their_backward(schedule, most_alive, tmp_path, monkeypatch):
    """1F1B holds min(p - s, m) microbatches on stage s of p (Narayanan et al., 2021, section 2.2); GPipe holds all m."""
    alive = {}
    backward = Stage._backward

    def watched(stage, action, last):
        alive.setdefault(action.chunk, []).append(len(stage._outputs))
        backward(stage, action, last)

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


def kept_bytes(layout, job):
    """Bytes of the distinct tensors that autograd keeps for the backward of one microbatch."""

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        kept = {}

        def pack(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        weights = {w.untyped_storage().data_ptr() for w in rank.weights}
        microbatch = rank._batch()[0]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            rank.chunks[0](microbatch.ids, *microbatch.ids.shape)
        return sum(size for pointer, size in kept.items() if pointer not in weights)

    return run_ranks(cut(SPEC, layout), body)[0]


def test_recomputation_keeps_less(tmp_path):
    job = section(tmp_path)
    none, selective, full = (kept_bytes(Layout(micro_batch=8, recompute=r), job) for r in ("none", "selective", "full"))
    assert full < 0.1 * none, "only the layers' inputs"
    assert full < selective < 0.85 * none, "rotated queries and keys, and KV heads laid out by query head"
