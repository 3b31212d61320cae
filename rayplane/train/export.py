"""A checkpoint becomes a Hugging Face folder that `transformers` loads, one tensor in memory at a time.

    step-00000100/  manifest.json, rank-*.safetensors        OUT/  config.json, model*.safetensors, tokenizer files
    boxes of model/layers.0.q, .k, .v               ─▶       transformer.h.0.attn.c_attn.weight

OUT appears under its name when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rayplane.errors import CheckpointError, Problem, SpecError
from rayplane.model.checkpoint_source import Boxes
from rayplane.model.names import hf_names
from rayplane.spec.hf_export import to_hf_config
from rayplane.spec.manifest import Manifest
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk, TensorSpec
from rayplane.train.gguf_tokenizer import hf_files
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
    boxes = Boxes(checkpoint, manifest, "export an older checkpoint")
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

    def assemble(self, boxes: Boxes) -> Floats:
        whole = np.concatenate([_whole(boxes, tensor) for tensor in self.parts])
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


def _whole(boxes: Boxes, tensor: TensorSpec) -> Floats:
    out = torch.empty(tensor.shape)
    boxes.fill(f"model/{tensor.name}", Chunk((0,) * len(tensor.shape), tensor.shape), out)
    return out.numpy()
