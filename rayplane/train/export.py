"""A checkpoint becomes a Hugging Face folder that `transformers` loads, one tensor in memory at a time.

    step-00000100/  manifest.json, rank-*.safetensors        OUT/  config.json, model*.safetensors, tokenizer files
    boxes of model/layers.0.q, .k, .v               ─▶       transformer.h.0.attn.c_attn.weight

OUT appears under its name when it is complete.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from rayplane.errors import CheckpointError, Problem, SpecError
from rayplane.model.names import hf_names
from rayplane.spec.hf_export import to_hf_config
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import TensorSpec
from rayplane.train.gguf_tokenizer import hf_files
from rayplane.train.manifest import Box, Manifest
from rayplane.train.shards import Entry, Floats, write_shards

DTYPES = {"fp32": ("F32", "float32"), "bf16": ("BF16", "bfloat16")}
"""What safetensors and a config call a dtype."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    spec: ModelSpec
    num_bytes: int
    files: tuple[str, ...]


def export(checkpoint: Path, out: Path, dtype: str = "fp32", extra: Mapping[str, Path | bytes] | None = None) -> Exported:
    """Write the weights of a complete checkpoint to the folder `out`, in `dtype`, with `extra` files or contents beside them."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(Problem(f"{out} exists and is not empty; name another folder", "OUT"))
    manifest = Manifest.read(checkpoint)
    spec = manifest.spec(checkpoint)
    stored_dtype, config_dtype = DTYPES[dtype]
    config, parts = to_hf_config(spec, config_dtype), _stored(spec)
    entries = [Entry(name, parts[name].shape, stored_dtype) for name in parts]
    boxes = _Boxes(checkpoint, manifest)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / "config.json").write_text(json.dumps(config, indent=2))
        for name, source in (extra or {}).items():
            (temporary / name).write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        write_shards(temporary, entries, lambda name: parts[name].assemble(boxes))
        temporary.replace(out)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written ({error}); free space, or name another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(spec, sum(e.num_bytes for e in entries), tuple(sorted(p.name for p in out.iterdir())))


def tokenizer_files(tokenizer: str, folder: Path | None) -> dict[str, Path | bytes]:
    """Files of the tokenizer that a job names, else of the model's folder, by the names that they get; empty for bytes."""
    path = Path(tokenizer).expanduser()
    if path.suffix == ".gguf":
        return {**hf_files(path)}
    beside = path if path.is_dir() else path.parent if path.is_file() else folder
    if beside is None:
        return {}
    found: dict[str, Path | bytes] = {name: beside / name for name in TOKENIZER_FILES if (beside / name).is_file()}
    return found | ({"tokenizer.json": path} if path.is_file() else {})


@dataclass(frozen=True, slots=True)
class _Assembly:
    """A tensor of the exported files and the tensors here that it stacks."""

    shape: tuple[int, ...]
    parts: tuple[TensorSpec, ...]
    transposed: bool

    def assemble(self, boxes: _Boxes) -> Floats:
        whole = np.concatenate([boxes.tensor(t) for t in self.parts])
        return np.ascontiguousarray(whole.T) if self.transposed else whole


def _stored(spec: ModelSpec) -> dict[str, _Assembly]:
    """The tensors of the exported files by their names, in model order."""
    names, stacked = hf_names(spec), dict[str, list[TensorSpec]]()
    for tensor in spec.tensors():
        stacked.setdefault(names.stored(tensor.name).name, []).append(tensor)
    assemblies = {}
    for name, tensors in stacked.items():
        at = names.stored(tensors[0].name)
        assemblies[name] = _Assembly(at.shape(tensors[0].shape), tuple(tensors), at.transposed)
    return assemblies


class _Boxes:
    """Reads the fp32 weights of a checkpoint; the bytes of each box are checked."""

    def __init__(self, folder: Path, manifest: Manifest):
        self._folder, self._manifest = folder, manifest
        self._open: dict[str, Any] = {}

    def tensor(self, tensor: TensorSpec) -> Floats:
        """A whole tensor."""
        whole, filled = np.empty(tensor.shape, dtype=np.float32), 0
        for box, values in self._read(tensor.name):
            whole[box.chunk.slices] = values
            filled += values.size
        if filled != whole.size:
            raise CheckpointError(f"{self._folder}: {tensor.name} is incomplete: {filled} of {whole.size} elements")
        return whole

    def _read(self, name: str) -> Iterator[tuple[Box, Floats]]:
        for box in self._manifest.tensors.get(f"model/{name}", ()):
            path = self._folder / box.file
            try:
                if box.file not in self._open:
                    self._open[box.file] = safe_open(path, framework="numpy")
                values: Floats = self._open[box.file].get_tensor(box.key)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot read {box.key} ({error}); export an older checkpoint") from error
            if zlib.crc32(values.data) != box.crc32:
                raise CheckpointError(f"{path}: {box.key} is damaged (its checksum differs); export an older checkpoint")
            yield box, values
