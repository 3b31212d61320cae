"""One device gives what plain torch gives, which test_layouts then extends to every way of cutting."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rayplane.model.names import HF_LLAMA
from rayplane.spec.job import OptimizerSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.sharding import tp_chunk
from rayplane.train.data import open_dataset
from rayplane.train.init import initial
from rayplane.train.threads import run_ranks

from . import reference
from .training import SEQ_LEN, Run, assert_equal, cut, make_rank, section, tiny, train

ROPE = Rope(theta=100.0, factor=8.0, original_max_seq=32)
"""Of its four frequencies one stays, one is blended, and two are divided."""
MODELS = {
    "llama-tied": tiny(tied=True, norm_eps=0.05, rope=ROPE),
    "qwen": tiny(tied=False, norm_eps=0.05, qkv_bias=True, qk_norm=True),
}
OPTIMIZER = OptimizerSection(
    lr=1e-2, min_lr=2e-3, warmup_steps=2, schedule="linear", clip=0.5, weight_decay=0.3, beta1=0.8, beta2=0.9, eps=1e-3
)
RATES = (5e-3, 1e-2, 1e-2, 6e-3, 2e-3)
SEED = 3


def published(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Weights of which none is where initialisation leaves it, norms and biases neither."""
    generator = torch.Generator().manual_seed(1)
    whole = {t.name: initial(t, tp_chunk(t, 1, 0), SEED) for t in spec.tensors()}
    return {name: w + 0.1 * torch.randn(w.shape, generator=generator) for name, w in whole.items()}


def save(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """As Hugging Face stores them."""
    folder.mkdir()
    save_file({HF_LLAMA.stored(name).name: w for name, w in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_one_device_equals_plain_torch(name, tmp_path, monkeypatch):
    """Losses, norms, weights and the held-out loss, from published weights; logits come in slices of 5 tokens."""
    monkeypatch.setattr("rayplane.model.loss.SLICE_ELEMENTS", 5 * 61)
    spec, job = MODELS[name], section(tmp_path, steps=len(RATES), optimizer=OPTIMIZER, seed=SEED)
    weights = published(spec)
    folder = save(tmp_path / "model", weights)
    got = train(spec, Layout(micro_batch=3), job, before=lambda rank: rank.read_weights(folder))

    dataset = open_dataset(job.data, Path(), tmp_path, spec.vocab)
    batches = [tuple(torch.from_numpy(a) for a in dataset.batch(range(8 * i, 8 * i + 8))) for i in range(len(RATES))]
    held = torch.stack([torch.from_numpy(dataset.holdout(i)) for i in range(7)])
    fresh = {t.name: initial(t, tp_chunk(t, 1, 0), SEED) for t in spec.tensors()}
    holdout = reference.mean_loss(spec, fresh, (held[:, :-1], held[:, 1:])).item()
    losses, norms = reference.train(spec, weights, batches, RATES, OPTIMIZER)
    assert min(norms) > OPTIMIZER.clip, "else clipping is not seen"
    expected = Run(losses, norms, holdout, {f"model/{n}": w.detach() for n, w in weights.items()})
    ours = Run(got.losses, got.norms, got.holdout, {n: w for n, w in got.tensors.items() if n.startswith("model/")})
    assert_equal(ours, expected, tolerance=2e-5)


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(tp=3)], ids=["serial", "tp2", "tp3"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_published_weights_equal_plain_torch(name, layout, tmp_path):
    spec, job = MODELS[name], section(tmp_path)
    weights = published(spec)
    folder = save(tmp_path / "model", weights)
    ids = torch.randint(0, spec.vocab, (2, SEQ_LEN), generator=torch.Generator().manual_seed(2))

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        rank.read_weights(folder)
        with torch.no_grad():
            return rank.chunks[0].head.logits(rank.chunks[0](ids, *ids.shape)).unflatten(0, ids.shape)

    for ours in run_ranks(cut(spec, layout), body):
        torch.testing.assert_close(ours, reference.logits(spec, weights, ids), rtol=1e-4, atol=1e-5)
