"""Initial weights: normal matrices, norms of one, biases of zero, and any box of them the same under every layout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk, TensorSpec, tp_chunk
from rayplane.train.init import initial

SPEC = ModelSpec(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, mlp=320, vocab=600, qkv_bias=True, qk_norm=True)
TENSORS = {t.name: t for t in SPEC.tensors()}


def whole(tensor: TensorSpec, seed: int = 0) -> torch.Tensor:
    return initial(tensor, tp_chunk(tensor, 1, 0), seed)


@pytest.mark.parametrize("name", ["embed", "layers.0.q", "layers.1.o", "layers.0.down", "head"])
def test_matrices_are_normal_with_their_own_deviation(name):
    tensor = TENSORS[name]
    values = whole(tensor) / tensor.init_std
    assert tensor.init_std == pytest.approx(0.01 if name.endswith((".o", ".down")) else 0.02)
    assert values.mean().item() == pytest.approx(0.0, abs=5 / tensor.numel**0.5)
    assert values.std().item() == pytest.approx(1.0, abs=5 / tensor.numel**0.5)
    assert (values.abs() < 1).float().mean().item() == pytest.approx(0.6827, abs=0.01)


def test_norms_are_one_and_biases_zero():
    for name, tensor in TENSORS.items():
        if len(tensor.dims) == 1:
            assert torch.equal(whole(tensor), torch.full(tensor.shape, 0.0 if "bias" in name else 1.0)), name


def test_no_two_tensors_blocks_or_seeds_are_alike():
    embed = whole(TENSORS["embed"])
    q, other = (whole(TENSORS[f"layers.{i}.q"]) for i in range(2))
    assert len({t[0, :8].sum().item() for t in (embed, embed[256:], embed[512:], q, other, whole(TENSORS["embed"], seed=1))}) == 6


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_box_equals_a_slice_of_the_whole(data):
    tensor = data.draw(st.sampled_from([TENSORS[n] for n in ("embed", "layers.0.k", "layers.1.down", "norm", "layers.0.q_bias")]))
    offset = tuple(data.draw(st.integers(0, n - 1)) for n in tensor.shape)
    chunk = Chunk(offset, tuple(data.draw(st.integers(1, n - o)) for n, o in zip(tensor.shape, offset, strict=True)))
    assert torch.equal(initial(tensor, chunk, 5), whole(tensor, 5)[chunk.slices])
