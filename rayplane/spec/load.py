"""A job file becomes a TrainJob or a ServeJob, or one error that lists every mistake in it.

read_document ──▶ schema_problems ──▶ check_sections ──▶ TrainJob | ServeJob
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
from rayplane.spec.job import AnyJob, LayoutSection, ServeJob, TrainJob, TrainSection
from rayplane.spec.model_section import ModelSection
from rayplane.spec.schema import kind_of, schema_problems
from rayplane.spec.section import Section
from rayplane.spec.serve_checks import ServeSections, check_serving
from rayplane.spec.serve_section import ServeLayoutSection, ServeSection
from rayplane.spec.source import load_model, model_folder

__all__ = ["load_afar", "load_job", "load_model", "load_serving", "load_training", "model_folder"]

S = TypeVar("S", bound=Section)


def load_job(path: Path) -> AnyJob:
    """Read and check a job file. Raises SpecError with every problem found, in the order of the file's lines."""
    return _checked(read_document(path))


def load_afar(path: Path) -> AnyJob:
    """A job that is to run elsewhere: the files that it names need not be on this machine. SpecError with everything else."""
    document = read_document(path)
    problems = [p for p in _problems(document, local=False) if p.field != "model.path"]
    if problems:
        raise SpecError(problems)
    return kind_of(document).model_validate(document.value)


def load_training(path: Path, command: str) -> TrainJob:
    """A job that trains, for a command that is of no use to others; SpecError for those."""
    document = read_document(path)
    job = _checked(document)
    if isinstance(job, TrainJob):
        return job
    raise SpecError(document.problem(("serve",), f"this job serves; rayplane {command} takes a job that trains, with a train section"))


def load_serving(path: Path, command: str) -> ServeJob:
    """A job that serves, for a command that is of no use to others; SpecError for those."""
    document = read_document(path)
    job = _checked(document)
    if isinstance(job, ServeJob):
        return job
    raise SpecError(document.problem(("train",), f"this job trains; rayplane {command} takes a job that serves, with a serve section"))


def _checked(document: Document) -> AnyJob:
    if problems := _problems(document, document.value.get("cluster", "auto") == "auto"):
        raise SpecError(problems)
    return kind_of(document).model_validate(document.value)


def _problems(document: Document, local: bool) -> list[Problem]:
    """Every problem, in the order of the file's lines. `local`: the job's files must be on this machine."""
    problems = [*document.problems, *schema_problems(document)]
    problems += [document.locate(p) for p in _together(document, problems, local)]
    return sorted(problems, key=lambda p: p.line)


def _together(document: Document, problems: list[Problem], local: bool) -> list[Problem]:
    """What the sections without problems of their own say together, so that it is checked in the same go."""
    bad = {field_path(p.field)[0] for p in problems if p.field}

    def good(name: str, kind: type[S]) -> S | None:
        value = document.value.get(name)
        return kind.model_validate(value) if name not in bad and isinstance(value, dict) else None

    model = good("model", ModelSection)
    if kind_of(document) is ServeJob:
        return check_serving(ServeSections(model, good("serve", ServeSection), good("layout", ServeLayoutSection), local))
    return check_sections(Sections(model, good("train", TrainSection), good("layout", LayoutSection), local))
