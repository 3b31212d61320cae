"""Which tokenizer a job means by `train.data.tokenizer`, and whether it is there.

bytes                         none, one token per byte
model                         the one that the model's path brings along: a tokenizer.json in its folder, in its .gguf, or what the job
                              that wrote a checkpoint named
FILE.gguf, FILE.json, DIR     that file, or the tokenizer.json of that folder
"""

from __future__ import annotations

from pathlib import Path

from rayplane.errors import Problem, SpecError
from rayplane.spec.checkpoint_path import checkpoint_at
from rayplane.spec.gguf_header import read_gguf_header
from rayplane.spec.gguf_tokenizer import gguf_tokenizer
from rayplane.spec.job import DataSection, TrainJob
from rayplane.spec.manifest import Manifest
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import HERE, config_place

BYTES, MODEL = "bytes", "model"
FIELD = "train.data.tokenizer"


def data_section(job: TrainJob, base: Path = HERE) -> DataSection:
    """What a job trains on, its tokenizer named by its place where it comes with the model. SpecError where the model has none."""
    data = job.train.data
    if data.tokenizer != MODEL:
        return data
    return data.model_copy(update={"tokenizer": _of_model(job.model, base)})


def tokenizer_problems(name: str, model: ModelSection | None, base: Path = HERE, field: str = FIELD) -> list[Problem]:
    """What is wrong with the tokenizer that a job names; `model` is None where nothing is known of it."""
    if name == BYTES or (name == MODEL and model is None):
        return []
    try:
        named = named_tokenizer(name, model, field, base) if model else str(base / Path(name).expanduser())
    except SpecError as error:
        return list(error.problems)
    place = Path(named)
    if named == BYTES:
        return []
    if place.suffix == ".gguf" and place.is_file():
        return _gguf_problems(place, field)
    if place.is_file() or (place / "tokenizer.json").is_file():
        return []
    message = f"{name} is neither 'bytes' nor 'model' nor a tokenizer.json, a .gguf or a folder with a tokenizer.json"
    return [Problem(message, field)]


def named_tokenizer(name: str, model: ModelSection, field: str, base: Path = HERE) -> str:
    """`bytes`, or a tokenizer's file or folder. SpecError where `model` is meant and brings none."""
    if name == BYTES:
        return BYTES
    return _of_model(model, base, field) if name == MODEL else str(base / Path(name).expanduser())


def _of_model(model: ModelSection, base: Path, field: str = FIELD) -> str:
    place = config_place(model, base)
    if place is None:
        message = "model: a model without a path brings no tokenizer; use bytes, or name a tokenizer.json"
        raise SpecError(Problem(message, field))
    if place.is_dir() and not (place / "tokenizer.json").is_file():
        if checkpoint_at(place) and Manifest.read(place).tokenizer == BYTES:
            return BYTES
        raise SpecError(Problem(f"model: {place} has no tokenizer.json; name one, or use bytes", field))
    return str(place)


def _gguf_problems(file: Path, field: str) -> list[Problem]:
    try:
        gguf_tokenizer(read_gguf_header(file).fields)
    except (OSError, ValueError) as error:
        return [Problem(f"{file} {error}", field)]
    return []
