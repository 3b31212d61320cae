"""What a stage keeps alive between Actions: the schedule's activations in flight, and no more."""

from dataclasses import replace

import pytest
import torch

from rayplane.spec.layout import Layout, split
from rayplane.train.stage import Stage
from rayplane.train.threads import run_ranks

from .training import assert_equal, cut, make_rank, section, tiny, train

SPEC = tiny(tied=False)
MULTI_HEAD = tiny(tied=False, heads=4, kv_heads=4)
FP32 = 4


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


def kept_bytes(spec, layout, job):
    """Bytes of the distinct tensors that autograd keeps for the backward of one microbatch, on each rank."""

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        kept = {}

        def pack(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        weights = {w.untyped_storage().data_ptr() for w in rank.weights}
        microbatch = rank._batch()[0]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            rank.chunks[0](microbatch.ids, *microbatch.ids.shape)
        return sum(size for pointer, size in kept.items() if pointer not in weights)

    return run_ranks(cut(spec, layout), body)


def kept_by_layer(spec, layout, job):
    """What one layer adds to it, on each rank."""
    more, fewer = (kept_bytes(replace(spec, layers=n), layout, job) for n in (3, 2))
    return [a - b for a, b in zip(more, fewer, strict=True)]


def with_seq_len(job, seq_len):
    return job.model_copy(update={"data": job.data.model_copy(update={"seq_len": seq_len})})


def layer_bytes(spec, tokens, rows, tp):
    """Of a layer with as many heads as KV heads, under none. `rows` are a rank's tokens of the residual stream."""
    norms = 2 * (2 * spec.hidden + 1) * rows  # input, its inverse rms, result
    heads = (6 * spec.head_dim + 1) * spec.heads // tp * tokens  # q, k, v; rotated q and k; result and log-sum-exp
    return FP32 * (norms + heads + 3 * spec.mlp // tp * tokens)  # gate, up, their product


@pytest.mark.parametrize("seq_len", [12, 11])
@pytest.mark.parametrize("sp", [False, True])
def test_what_a_layer_keeps_is_the_closed_form_and_sp_cuts_all_of_it(sp, seq_len, tmp_path):
    """Korthikanti et al. (2022), section 4.2.2, with 12 and with 11 tokens on two ranks."""
    layout, job = Layout(tp=2, sp=sp, micro_batch=1), with_seq_len(section(tmp_path), seq_len)
    rows = [split(seq_len, 2, r)[1] if sp else seq_len for r in range(2)]
    kept = kept_by_layer(MULTI_HEAD, layout, job)
    assert kept == [layer_bytes(MULTI_HEAD, seq_len, n, 2) for n in rows]
    (whole,) = kept_by_layer(MULTI_HEAD, Layout(micro_batch=1), job)
    assert whole == layer_bytes(MULTI_HEAD, seq_len, seq_len, 1)
    assert (sum(kept) == whole) is sp, "the residual stream and the norms' results lie on both ranks without sp"


def test_recomputation_keeps_less(tmp_path):
    job = section(tmp_path)
    none, selective, full = (kept_bytes(SPEC, Layout(micro_batch=8, recompute=r), job)[0] for r in ("none", "selective", "full"))
    assert full < 0.1 * none, "only the layers' inputs"
    assert full < selective < 0.85 * none, "rotated queries and keys, and KV heads laid out by query head"


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("level", ["selective", "full"])
def test_each_layer_that_computes_again_keeps_less_by_as_much(level, sp, tmp_path):
    """`recompute_layers` 1 to 4 of 4 layers, and 0 for all."""
    job, tokens = section(tmp_path), 12
    layout = Layout(tp=2, sp=sp, micro_batch=1, recompute=level)
    rows = tokens // 2 if sp else tokens
    none = kept_bytes(MULTI_HEAD, replace(layout, recompute="none"), job)[0]
    kept = [kept_bytes(MULTI_HEAD, replace(layout, recompute_layers=n), job)[0] for n in (1, 2, 3, 4, 0)]
    (less,) = {
        "full": [layer_bytes(MULTI_HEAD, tokens, rows, 2) - FP32 * rows * MULTI_HEAD.hidden],
        # Rotated q and k, the log-sum-exp; gate and up stay, and so does what they become, as the input of what follows.
        "selective": [FP32 * tokens * MULTI_HEAD.heads // 2 * (2 * MULTI_HEAD.head_dim + 1)],
    }[level]
    assert kept == [none - n * less for n in (1, 2, 3, 4, 4)]


@pytest.mark.parametrize(
    "layout",
    [
        Layout(micro_batch=2, recompute="full", recompute_layers=3),
        Layout(tp=2, sp=True, micro_batch=2, recompute="selective", recompute_layers=1),
        Layout(
            pp=2, vpp=2, tp=2, sp=True, micro_batch=2, schedule="zbv", boundaries=(2, 1, 1, 0), recompute="full", recompute_layers=1
        ),
    ],
)
def test_some_layers_that_compute_again_change_nothing_but_memory(layout, tmp_path):
    job = section(tmp_path)
    assert_equal(train(SPEC, layout, job), train(SPEC, Layout(micro_batch=8), job))
