"""The tokenizer of a job that serves, as its ingresses and engines open it.

bytes                  both know it
FILE.gguf              written out into the job's folder: tokenizer.json, tokenizer_config.json
FILE.json, DIR         where it is
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayplane.api.tokenizer import open_tokenizer
from rayplane.errors import RayplaneError
from rayplane.spec.job import ServeJob
from rayplane.spec.tokenizer import BYTES, named_tokenizer
from rayplane.train.gguf_tokenizer import hf_files

FIELD = "serve.tokenizer"
FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ServeTokenizer:
    """Paths are absolute."""

    source: str
    """For ingresses: `bytes`, or a tokenizer.json with what stands beside it."""
    file: str
    """For engines: the tokenizer.json; empty where ids are bytes."""
    end_tokens: tuple[int, ...]
    """Any of these ends a text."""


def serve_tokenizer(job: ServeJob, directory: Path) -> ServeTokenizer:
    """The one that the job names; what has to be written out goes below `directory`. SpecError, DataError."""
    named = named_tokenizer(job.serve.tokenizer, job.model, FIELD)
    if named == BYTES:
        return ServeTokenizer(BYTES, "", tuple(sorted(open_tokenizer(BYTES).end_tokens)))
    place = Path(named).absolute()
    if place.suffix == ".gguf":
        place = _written_out(place, directory / "tokenizer")
    elif place.is_dir():
        place = place / FILE
    return ServeTokenizer(str(place), str(place), tuple(sorted(open_tokenizer(str(place)).end_tokens)))


def _written_out(gguf: Path, folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in hf_files(gguf).items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise RayplaneError(f"{FIELD}: cannot write it out to {folder}: {error.strerror}") from error
    return folder / FILE
