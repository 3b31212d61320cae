"""Whether the files and folders that a job names are there: on this machine, and only where the job is to run on it."""

from __future__ import annotations

from pathlib import Path

from rayplane.errors import DataError, Problem
from rayplane.spec.data_files import STDLIB, data_path, matching, nothing_matches
from rayplane.spec.job import TrainSection
from rayplane.spec.paths import path_fault


def path_problems(train: TrainSection, local: bool) -> list[Problem]:
    """Texts that are no paths: nothing can be looked up there."""
    fields = {f"train.data.path[{i}]": source.path for i, source in enumerate(train.data.path)}
    fields |= {"train.data.tokenizer": train.data.tokenizer, "train.checkpoint.dir": train.checkpoint.dir}
    problems = [Problem(fault, field) for field, text in fields.items() if (fault := path_fault(text, local))]
    if not problems and not Path(train.checkpoint.dir).expanduser().absolute().name:
        problems.append(Problem("/ cannot be a job's folder; name one of its own", "train.checkpoint.dir"))
    return problems


def file_problems(train: TrainSection) -> list[Problem]:
    """Data that is not there, folders in which nothing is to be read, a job's folder that is a file."""
    problems = [p for i, source in enumerate(train.data.path) for p in _data(source.path, train.data.include, f"train.data.path[{i}]")]
    folder = Path(train.checkpoint.dir).expanduser().absolute()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        problems.append(Problem(f"{there} is a file; name a folder", "train.checkpoint.dir"))
    return problems


def is_prefix(path: str) -> bool:
    """Whether a path is what two files, PATH.idx and PATH.bin, have in common."""
    return all(data_path(f"{path}{suffix}").is_file() for suffix in (".idx", ".bin"))


def _data(path: str, include: list[str], field: str) -> list[Problem]:
    if "://" in path and path != STDLIB:
        return [Problem(f"unknown kind of path {path!r}; there are files, folders and {STDLIB}", field)]
    place = data_path(path)
    if not (place.exists() or is_prefix(path)):
        return [Problem(f"no such file or folder: {path} (looked in {Path.cwd()})", field)]
    if not place.is_dir():
        return []
    try:
        found = next(matching(path, place, include), None)
    except DataError as error:
        return [Problem(str(error), field)]
    return [] if found else [Problem(nothing_matches(path, include), "train.data.include")]
