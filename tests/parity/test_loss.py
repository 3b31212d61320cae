"""Head and loss in slices: no tensor has every token and every row of the vocabulary, in either pass."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rayplane.spec.layout import Layout, split
from rayplane.train.threads import run_ranks

from .training import SEQ_LEN, cut, make_rank, section, tiny

TOKENS, FP32 = 8 * SEQ_LEN, 4
SPEC = tiny(tied=False, vocab=4096)


class Shapes(TorchDispatchMode):
    """The shape of every tensor that an operation gives."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {x.shape for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        return out


def shapes_of_a_step(layout, job):
    """On each rank; one microbatch."""

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        with Shapes() as shapes:
            rank.step(drain=False)
        return shapes.seen

    return run_ranks(cut(SPEC, layout), body)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", [Layout(micro_batch=8), Layout(tp=2, micro_batch=8), Layout(tp=2, sp=True, micro_batch=8)], ids=str)
def test_logits_never_exist_as_a_whole(layout, precision, tmp_path, monkeypatch):
    job, wide = section(tmp_path, precision=precision), SPEC.vocab // layout.tp
    for seen in shapes_of_a_step(layout, job):
        assert (TOKENS, wide) in seen, "a slice that is large enough holds all"
    monkeypatch.setattr("rayplane.model.loss.SLICE_ELEMENTS", 2 * wide)
    for seen in shapes_of_a_step(layout, job):
        assert (2, wide) in seen, "a slice"
        assert max(shape.numel() for shape in seen) < TOKENS * wide


@pytest.mark.parametrize("seq_len", [12, 11])
@pytest.mark.parametrize("sp", [False, True])
def test_the_head_keeps_the_gradient_of_its_rows_and_nothing_else(sp, seq_len, tmp_path):
    plain = section(tmp_path)
    job = plain.model_copy(update={"data": plain.data.model_copy(update={"seq_len": seq_len})})

    def body(mesh):
        rank, kept = make_rank(SPEC, job, mesh), []
        microbatch = rank._batch()[0]
        x = rank.chunks[0](microbatch.ids, *microbatch.ids.shape)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x):
            rank.chunks[0].head.loss(x, microbatch.targets.flatten(), 1.0)
        return sum(kept)

    rows = [split(seq_len, 2, r)[1] if sp else seq_len for r in range(2)]
    assert run_ranks(cut(SPEC, Layout(tp=2, sp=sp, micro_batch=1)), body) == [FP32 * SPEC.hidden * n for n in rows]
