"""What is exported, `transformers` loads, and it computes the same."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rayplane.errors import CheckpointError, SpecError
from rayplane.model.weights import open_weights
from rayplane.spec.manifest import NAME, Box, Manifest, described
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.sharding import tp_owned
from rayplane.spec.source import load_model
from rayplane.train import shards
from rayplane.train.export import export, tokenizer_files
from tests.model.families import FAMILIES, VOCAB, save, transformers

IDS = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(5))


def checkpoint(folder: Path, model: Path, spec: ModelSpec, tp: int = 2) -> Path:
    """A published model as a checkpoint that `tp` ranks have written."""
    folder.mkdir()
    source, boxes = open_weights(model, spec), dict[str, list[Box]]()
    for rank in range(tp):
        file, held = f"rank-{rank:05d}.safetensors", {}
        for tensor in spec.tensors():
            if (chunk := tp_owned(tensor, tp, rank)) is not None:
                key = f"model/{tensor.name}@{','.join(map(str, chunk.offset))}"
                held[key] = source.read(tensor.name, chunk)
                crc32 = zlib.crc32(held[key].numpy().data)
                boxes.setdefault(f"model/{tensor.name}", []).append(Box(chunk.offset, chunk.size, file, key, crc32))
        save_file(held, folder / file)
    tensors = {name: tuple(found) for name, found in boxes.items()}
    (folder / NAME).write_text(Manifest(7, 56, "data", described(spec), tensors, "tp2").dump())
    return folder


def logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, Path]:
    """A small model's folder, and a checkpoint of it."""
    folder = tmp_path_factory.mktemp("model")
    save("gpt2-narrow", folder)
    return folder, checkpoint(folder / "step-00000007", folder, load_model(ModelSection(path=str(folder))))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_model_gives_equal_logits(family, tmp_path):
    model = save(family, tmp_path / "model")
    spec = load_model(ModelSection(path=str(tmp_path / "model")))
    written = checkpoint(tmp_path / "step-00000007", tmp_path / "model", spec)
    done = export(written, tmp_path / "out")
    assert done.spec == spec
    assert done.num_bytes == 4 * spec.num_params
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "out"), model(input_ids=IDS).logits)
    assert load_model(ModelSection(path=str(tmp_path / "out"))) == ModelSpec(**{**_fields(spec), "name": "out"})


def _fields(spec: ModelSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def test_a_large_model_is_written_in_shards_with_an_index(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 5000)
    done = export(saved[1], tmp_path / "out")
    files = [f for f in done.files if f.endswith(".safetensors")]
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == done.num_bytes
    assert torch.equal(logits(tmp_path / "out"), logits(saved[0]))


def test_bf16_is_rounded_as_torch_rounds(saved, tmp_path):
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(shards.to_bf16(values.numpy()), values.bfloat16().view(torch.uint16).numpy())
    export(saved[1], tmp_path / "out", "bf16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (logits(tmp_path / "out") - logits(saved[0])).abs().max() < 0.2


def test_tokenizer_files_are_copied(saved, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "unrelated.txt"):
        (tmp_path / name).write_text(name)
    found = tokenizer_files(str(tmp_path), None)
    assert sorted(found) == ["tokenizer.json", "tokenizer_config.json"]
    assert tokenizer_files("bytes", None) == {}
    assert tokenizer_files("bytes", tmp_path) == found
    assert tokenizer_files(str(tmp_path / "unrelated.txt"), None)["tokenizer.json"] == tmp_path / "unrelated.txt"
    export(saved[1], tmp_path / "out", extra=found)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"


def test_a_flipped_byte_is_named_and_nothing_is_left(saved, tmp_path):
    broken = checkpoint(tmp_path / "step-00000007", saved[0], load_model(ModelSection(path=str(saved[0]))))
    file = broken / "rank-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rank-00001.safetensors: model/.* is damaged"):
        export(broken, tmp_path / "out")
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_a_folder_with_something_in_it_is_not_overwritten(saved, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SpecError, match="exists and is not empty; name another folder"):
        export(saved[1], tmp_path)


def test_a_checkpoint_without_a_tensor_is_incomplete(saved, tmp_path):
    broken = checkpoint(tmp_path / "step-00000007", saved[0], load_model(ModelSection(path=str(saved[0]))))
    manifest = json.loads((broken / NAME).read_text())
    del manifest["tensors"]["model/norm_bias"]
    (broken / NAME).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="norm_bias is incomplete: 0 of 24 elements"):
        export(broken, tmp_path / "out")


def test_a_manifest_without_a_newer_field_has_its_default(saved):
    spec, manifest = load_model(ModelSection(path=str(saved[0]))), Manifest.read(saved[1])
    del manifest.model["window"]
    assert manifest.spec(saved[1]) == spec
    manifest.check_model(spec, saved[1])
    manifest.model["colour"] = "green"
    with pytest.raises(CheckpointError, match="another version of rayplane"):
        manifest.spec(saved[1])
