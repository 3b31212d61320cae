"""The tokenizer that a checkpoint brings along, so that it can be served, and trained further, by itself.

bytes                                       its name
a tokenizer.json, a .gguf, a folder         the files, as a Hugging Face folder has them
only token arrays, and nothing was named    the one that the model brings along, where there is one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rayplane.errors import SpecError
from rayplane.spec.job import DataSection, TrainJob
from rayplane.spec.tokenizer import BYTES, FIELD, MODEL, data_section, named_tokenizer
from rayplane.train.arrays import SUFFIXES
from rayplane.train.documents import find_sources
from rayplane.train.export import tokenizer_files

FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Carried:
    """`name` is the manifest's; the files have the names that they get."""

    name: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


NO_TOKENIZER = Carried()


def carried_tokenizer(job: TrainJob) -> Carried:
    """The one that the job's checkpoints bring along."""
    data = data_section(job)
    name = data.tokenizer
    if name == BYTES and not _has_text(data):
        try:
            name = named_tokenizer(MODEL, job.model, FIELD)
        except SpecError:
            return NO_TOKENIZER
    if name == BYTES:
        return Carried(BYTES)
    found = tokenizer_files(name, None).items()
    return Carried(FILE, {file: content if isinstance(content, bytes) else content.read_bytes() for file, content in found})


def _has_text(data: DataSection) -> bool:
    """Whether some of it was not tokens already."""
    return any(file.suffix not in SUFFIXES for source in find_sources(data, Path()) for file in source.files)
