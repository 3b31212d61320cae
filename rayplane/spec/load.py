"""A job file becomes a JobSpec, or one error that lists every mistake in it.

read_document ──▶ schema_problems ──▶ check_sections ──▶ JobSpec
 YAML, lines       each field           fields together

jobs/bad.yaml:3: train.step: unknown field, did you mean 'steps'?
jobs/bad.yaml:7: layout.boundaries: adds up to 7, model tiny-llama has 8 layers
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from rayplane.errors import Problem, SpecError
from rayplane.spec.checks import Sections, check_sections
from rayplane.spec.document import Document, field_path, read_document
from rayplane.spec.job import JobSpec, LayoutSection, ModelSection, TrainSection
from rayplane.spec.schema import schema_problems
from rayplane.spec.section import Section
from rayplane.spec.source import load_model, model_folder

__all__ = ["load_job", "load_model", "model_folder"]

S = TypeVar("S", bound=Section)


def load_job(path: Path) -> JobSpec:
    """Read and check a job file. Raises SpecError with every problem found, in the order of the file's lines."""
    document = read_document(path)
    problems = [*document.problems, *schema_problems(document)]
    problems += [document.locate(p) for p in check_sections(_sections(document, problems))]
    if problems:
        raise SpecError(sorted(problems, key=lambda p: p.line))
    return JobSpec.model_validate(document.value)


def _sections(document: Document, problems: list[Problem]) -> Sections:
    """The sections without problems of their own, so that what they say together is checked in the same go."""
    bad = {field_path(p.field)[0] for p in problems if p.field}

    def good(name: str, kind: type[S]) -> S | None:
        value = document.value.get(name)
        return kind.model_validate(value) if name not in bad and isinstance(value, dict) else None

    local = document.value.get("cluster", "auto") == "auto"
    return Sections(good("model", ModelSection), good("train", TrainSection), good("layout", LayoutSection), local)
