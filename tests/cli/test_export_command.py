"""`rayplane export`: what training has saved becomes a folder that others load."""

import json
from dataclasses import replace

import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model
from rayplane.train.threads import run_ranks
from tests.parity.training import cut, make_rank, section, store, tiny

IDS = torch.arange(12)[None]
GPT2 = {"norm": "layernorm", "positions": "learned", "act": "gelu", "qkv_bias": True, "o_bias": True, "mlp_bias": True}
SPECS = {
    "mistral": tiny(tied=True),  # 9 heads do not divide 24, which transformers wants of a llama
    "llama": tiny(tied=True, hidden=36),
    "gpt2": tiny(**GPT2, kv_heads=9, hidden=72, max_seq=16),
    "neither": tiny(norm="layernorm"),
}


def trained(spec, folder):
    """The job's folder after two steps on two ranks, and the logits of the model."""
    train = section(folder, steps=2)

    def body(mesh):
        rank = make_rank(spec, train, mesh)
        for _ in range(2):
            rank.step(drain=False)
        rank.start_save(store(mesh, spec, train)).result()
        with torch.no_grad():
            return rank.chunks[0].head.logits(rank.chunks[0](IDS, *IDS.shape))

    logits, _ = run_ranks(cut(spec, Layout(tp=2, micro_batch=4)), body)
    return train.checkpoint.dir, logits


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_a_trained_model_gives_the_same_logits_in_transformers(family, cli, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder, logits = trained(SPECS[family], tmp_path)
    done = cli("export", folder, "out")
    assert done.exit_code == 0, done.stderr
    assert f"step-00000002 -> out: {family}, " in done.stdout
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=IDS).logits[0], logits, rtol=1e-4, atol=1e-5)
    back = load_model(ModelSection(path=str(tmp_path / "out")))
    assert replace(back, name="custom") == SPECS[family]


def test_a_model_of_no_family_is_refused(cli, tmp_path):
    folder, _ = trained(SPECS["neither"], tmp_path)
    done = cli("export", folder, "out")
    assert done.exit_code == 2
    assert "no Hugging Face model has layernorm, rope, swiglu" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_of_the_job_goes_along(cli, job, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    folder, _ = trained(SPECS["llama"], tmp_path)
    numbers = "{layers: 4, hidden: 36, heads: 9, kv_heads: 3, head_dim: 8, mlp: 50, vocab: 61, tied: true}"
    changes = {"tokenizer: bytes": "tokenizer: tokenizer", "{preset: tiny-llama}": numbers}
    done = cli("export", folder, "out", "--bf16", "--job", job(**changes))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.rstrip().endswith("of bf16: config.json, model.safetensors, tokenizer.json")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_job_of_another_model_is_refused_with_both_named(cli, job, tmp_path):
    folder, _ = trained(SPECS["llama"], tmp_path)
    done = cli("export", folder, "out", "--job", job())
    assert done.exit_code == 2
    assert "job.yaml: model: tiny-llama is not the model that " in done.stderr
    assert f"{folder}/step-00000002 holds, custom (" in done.stderr
    assert "hidden 36 there, 128 here" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_checkpoint_is_refused(cli, tmp_path):
    done = cli("export", tmp_path, "out")
    assert done.exit_code == 1
    assert "is no complete checkpoint and holds none" in done.stderr
