"""`rayplane export`: a checkpoint as a Hugging Face folder.

runs/quickstart/step-00000300 -> exported: llama, 1.64 M parameters, 6.57 MB of fp32: config.json, model.safetensors
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayplane.cli.words import count
from rayplane.control.checkpoints import newest
from rayplane.errors import CheckpointError, Problem, SpecError
from rayplane.spec.hf_export import hf_family
from rayplane.spec.load import load_model, load_training, model_folder
from rayplane.spec.manifest import NAME, Manifest, differences
from rayplane.spec.tokenizer import data_section
from rayplane.train.export import export as write
from rayplane.train.export import tokenizer_files


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint's folder, or a job's checkpoint.dir for its newest one.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist, or be empty.")],
    job: Annotated[Path | None, typer.Option("--job", help="The job file, for its tokenizer; else the checkpoint's.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Round the fp32 weights to bf16.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder (config.json, safetensors, tokenizer), which `transformers` loads."""
    folder = _folder(checkpoint)
    extra = _tokenizer_of(job, folder) if job else tokenizer_files(str(folder), None)
    dtype = "bf16" if bf16 else "fp32"
    done = write(folder, out, dtype, extra)
    size = f"{hf_family(done.spec)}, {count(done.spec.num_params)} parameters, {done.num_bytes / 1e6:.2f} MB of {dtype}"
    typer.echo(f"{folder} -> {out}: {size}: {', '.join(done.files)}")


def _tokenizer_of(job: Path, checkpoint: Path) -> dict[str, Path | bytes]:
    """The tokenizer's files of a job. SpecError when the checkpoint is of another model than the job's."""
    spec = load_training(job, "export")
    model, trained = load_model(spec.model), Manifest.read(checkpoint).spec(checkpoint)
    if different := differences(trained, model):
        message = (
            f"{model.name} is not the model that {checkpoint} holds, {trained.name} ({different}); "
            "name the job that trained it, or leave --job out"
        )
        raise SpecError(Problem(message, "model", str(job)))
    return tokenizer_files(data_section(spec).tokenizer, _beside(model_folder(spec.model)))


def _folder(path: Path) -> Path:
    """The checkpoint that a path means."""
    if (path / NAME).is_file():
        return path
    if found := newest(path).path:
        return Path(found)
    raise CheckpointError(f"{path} is no complete checkpoint and holds none; name a folder step-… or a job's checkpoint.dir")


def _beside(model: Path | None) -> Path | None:
    """The folder in which a model's other files lie."""
    return model.parent if model is not None and model.is_file() else model
