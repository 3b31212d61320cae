"""Weights of a published model, read box by box: a rank reads its own chunks and never the whole model.

source = open_weights(path, spec)                    # every name and shape is compared with `spec` here
source.read("layers.3.q", chunk_of(tensor, ...))     # that box, fp32

folder with model.safetensors, or its index and shards    safetensors_source
checkpoint of rayplane's                                  checkpoint_source
file.gguf                                                gguf_source
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from rayplane.errors import Problem, SpecError
from rayplane.model.checkpoint_source import open_checkpoint
from rayplane.model.gguf_source import GgufSource, open_gguf
from rayplane.model.safetensors_source import SafetensorsSource, open_safetensors
from rayplane.spec.checkpoint_path import checkpoint_at
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk

MAX_PROBLEMS = 8
"""A wrong model differs in every layer; so many differences tell which."""
IGNORED = re.compile(r".*rotary_emb\.inv_freq|.*\.attn\.(masked_)?bias")
"""Stored by old Hugging Face versions, rotary angles and causal masks; computed here."""


class WeightSource(Protocol):
    """Published weights by the names of `ModelSpec.tensors()`."""

    def read(self, name: str, chunk: Chunk) -> torch.Tensor:
        """The box `chunk` of tensor `name`: fp32, contiguous, of shape `chunk.size`."""


def open_weights(path: Path, spec: ModelSpec) -> WeightSource:
    """The weights at `path`: a Hugging Face folder, a checkpoint or a .gguf file; SpecError unless they are exactly those of `spec`."""
    if checkpoint := checkpoint_at(path):
        return open_checkpoint(checkpoint, spec)
    source = _open(path, spec)
    if problems := mismatches(source, spec):
        shown = [Problem(text, "model.path", str(path)) for text in problems[:MAX_PROBLEMS]]
        if more := len(problems) - len(shown):
            shown.append(Problem(f"and {more} more differences", "model.path", str(path)))
        raise SpecError(shown)
    return source


def _open(path: Path, spec: ModelSpec) -> SafetensorsSource | GgufSource:
    if path.is_dir():
        return open_safetensors(path, spec)
    if path.is_file() and path.suffix == ".gguf":
        return open_gguf(path, spec)
    found = "is neither a Hugging Face folder nor a .gguf file" if path.exists() else "does not exist"
    raise SpecError(Problem(f"{path} {found}; give a folder with model.safetensors, or a .gguf file", "model.path"))


def mismatches(source: SafetensorsSource | GgufSource, spec: ModelSpec) -> list[str]:
    """How the stored tensors differ from those of `spec`, each with its remedy."""
    stored, unreadable = source.shapes(), source.unreadable()
    wanted = {(at := source.stored(t.name)).name: at.shape(t.shape) for t in spec.tensors()}
    problems = [text for name, shape in wanted.items() if (text := _difference(name, shape, stored))]
    problems += [
        f"tensor {name} is stored as {kind}, which cannot be read; convert it to bf16, fp16 or fp32"
        for name, kind in unreadable.items()
        if name in wanted
    ]
    copy = source.names.outer["head"] if spec.tied else ""
    surplus = sorted(n for n in stored.keys() - wanted.keys() if not IGNORED.fullmatch(n) and n != copy)
    model = f"{spec.layers} layers, biases of q, k, v {spec.qkv_bias}, of o {spec.o_bias}, of the feed-forward {spec.mlp_bias}"
    return problems + [
        f"tensor {name} {list(stored[name])} is not part of the model that the job describes ({model}, "
        f"qk_norm {spec.qk_norm}, tied {spec.tied}); correct the config that lies beside the weights"
        for name in surplus
    ]


def _difference(name: str, shape: tuple[int, ...], stored: Mapping[str, tuple[int, ...]]) -> str:
    if name not in stored:
        return f"tensor {name} {list(shape)} is missing; download the model again, or correct its config"
    if stored[name] != shape:
        return f"tensor {name} has shape {list(stored[name])}, the config says {list(shape)}; take weights and config of one model"
    return ""
