"""What a job's folder says before a run: is it another job's, or another model's, is the job done, from where does it go on.

result.json    the final object of a finished run, for who asks again
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayplane.control.checkpoints import newest
from rayplane.control.service_status import read_service
from rayplane.control.status import EVENTS_FILE, STATUS_FILE, read_status, write_json
from rayplane.errors import Problem, RayplaneError, SpecError
from rayplane.spec.manifest import model_numbers
from rayplane.spec.model import ModelSpec

RESULT_FILE = "result.json"


def set_aside(directory: Path) -> Path | None:
    """Rename a job's folder so that the job starts anew; where it went, or None where there was none.

    RayplaneError where it is no job's, or holds the folder that rayplane runs in: neither may go.
    """
    if not directory.exists():
        return None
    if Path.cwd().resolve().is_relative_to(directory.resolve()):
        raise RayplaneError(f"--fresh would rename {directory}, in which rayplane runs; run it elsewhere, or name another folder")
    if not _is_a_jobs(directory):
        raise RayplaneError(f"--fresh would rename {directory}, which holds no job but other things; rename it, or name another folder")
    taken = (directory.with_name(f"{directory.name}.old-{n}") for n in range(1, 1_000_000))
    aside = next(path for path in taken if not path.exists())
    try:
        return directory.rename(aside)
    except OSError as error:
        raise RayplaneError(f"--fresh cannot rename {directory} to {aside}: {error.strerror}") from error


def _is_a_jobs(directory: Path) -> bool:
    """Whether a folder is empty, or a controller has worked there."""
    known = {STATUS_FILE, EVENTS_FILE}
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return directory.is_dir() and (not names or bool(names & known) or bool(newest(directory).path))


def refuse_others(directory: Path, name: str, model: ModelSpec) -> None:
    """Raise SpecError when the folder holds checkpoints of another job, or of another model."""
    status = read_status(directory)
    if status is None or not newest(directory).path:
        return
    if status.name != name:
        message = (
            f"{directory} belongs to job {status.name!r}, of which {status.step} of {status.steps} steps are done; "
            f"name another folder, set name: {status.name} to go on with that job, or start over with --fresh, which keeps it aside"
        )
        raise SpecError(Problem(message, "train.checkpoint.dir"))
    if changed := _differences(status.model, model_numbers(model)):
        message = (
            f"{directory} holds checkpoints of another model ({changed}); "
            "name another folder, or start over with --fresh, which keeps the old one aside"
        )
        raise SpecError(Problem(message, "train.checkpoint.dir"))


def refuse_training(directory: Path) -> None:
    """Raise SpecError when the folder is that of a job that trains."""
    if read_service(directory) is None and (directory / STATUS_FILE).is_file():
        message = (
            f"{directory} is the folder of a job that trains; name this job otherwise, or start over with --fresh, which keeps it aside"
        )
        raise SpecError(Problem(message, "name"))


def _differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """What differs between the numbers of two models; nothing where those of the folder are not known."""
    return "; ".join(f"{k} {there.get(k)} there, {v} here" for k, v in here.items() if there and there.get(k) != v)


def finished_result(directory: Path, steps: int) -> dict[str, Any] | None:
    """The final object of a job that has ended with all its steps, else None: also where only its last words are missing."""
    path, checkpoint = directory / RESULT_FILE, newest(directory)
    if checkpoint.step < steps or not path.is_file():
        return None
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        return known if known["steps"] == checkpoint.step else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep_result(directory: Path, result: dict[str, Any]) -> None:
    """Write the final object of a finished run."""
    write_json(directory / RESULT_FILE, result)
