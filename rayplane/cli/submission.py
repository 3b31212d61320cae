"""A cluster's job server, as `rayplane submit` uses it: Ray's own client, with its failures in words.

name on the cluster    demo-1, demo-2, …: a number behind the job's name, which Ray lets only one of two submissions at once have
one at a time          while a job of that name waits or runs, another one is refused
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ray.exceptions import AuthenticationError

from rayplane.errors import RayplaneError

T = TypeVar("T")
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
JOB = "rayplane.job"
"""The key of a job's name in the metadata of its submission."""
TRIES = 3
SILENCE_S = 60.0
"""A cluster that answers nothing for so long is given up while its job is followed."""
RETRY_S = 1.0

NO_TOKEN = (
    "{address} asks for a token: set RAY_AUTH_MODE=token, with the token in ~/.ray/auth_token or in the file of RAY_AUTH_TOKEN_PATH"
)
WRONG_TOKEN = "{address} refuses the token: the one in ~/.ray/auth_token, or in the file of RAY_AUTH_TOKEN_PATH, is of another cluster"
NOBODY = "no Ray cluster answers at {address}; name its dashboard, such as --address http://HEAD:8265"


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as the cluster's job server knows it."""

    id: str
    name: str
    """Of the job; empty where rayplane did not submit it."""
    status: str
    """PENDING, RUNNING, SUCCEEDED, STOPPED or FAILED."""
    message: str = ""
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it neither waits nor runs."""
        return self.status not in ("PENDING", "RUNNING")


def free_id(name: str, known: Iterable[Submission]) -> str:
    """The next id for a job of this name. RayplaneError while one of the name waits or runs."""
    numbers = [0]
    for submission in known:
        if submission.name == name and not submission.ended:
            raise RayplaneError(
                f"{name} is {submission.status.lower()} on this cluster as {submission.id}: stop it (ray job stop {submission.id}), "
                "or give this one another --name"
            )
        if match := re.fullmatch(rf"{re.escape(name)}-(\d+)", submission.id):
            numbers.append(int(match[1]))
    return f"{name}-{max(numbers) + 1}"


class JobServer:
    """Of one cluster. `address` goes before those of the environment."""

    def __init__(self, address: str):
        from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

        if address:
            for variable in ADDRESSES:
                os.environ.pop(variable, None)  # or Ray would take them instead
        self._address = address or next((os.environ[name] for name in ADDRESSES if os.environ.get(name)), "")
        if not self._address:
            raise RayplaneError(f"on which cluster? name its dashboard, such as --address http://HEAD:8265, or set {ADDRESSES[0]}")
        self._client = self._asked(lambda: JobSubmissionClient(address or None))

    def submit(self, name: str, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]) -> str:
        """Upload the working directory and start the job; its id."""
        for left in reversed(range(TRIES)):
            chosen = free_id(name, self.known())
            try:
                wanted: dict[str, Any] = {"submission_id": chosen, "runtime_env": runtime_env, "metadata": {**metadata, JOB: name}}
                return str(self._asked(lambda: self._client.submit_job(entrypoint=entrypoint, **wanted)))  # noqa: B023
            except RayplaneError as error:
                if "already exists" not in str(error) or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def known(self) -> list[Submission]:
        """Every submission that the cluster remembers."""
        return [_submission(details) for details in self._asked(self._client.list_jobs) if details.submission_id]

    def look(self, submission: str) -> tuple[Submission, str]:
        """Where a job stands, and all that it has printed; bears a cluster that does not answer for a while."""
        end_s = time.monotonic() + SILENCE_S
        while True:
            try:
                found = _submission(self._client.get_job_info(submission))
                return found, str(self._client.get_job_logs(submission))
            except (OSError, RuntimeError) as error:
                if time.monotonic() >= end_s:
                    raise RayplaneError(f"{self._address} does not answer any more ({error}); the job may go on there") from error
                time.sleep(RETRY_S)

    def stop(self, submission: str) -> None:
        """Have the job stopped: SIGTERM now, SIGKILL after its grace."""
        self._asked(lambda: self._client.stop_job(submission))

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except AuthenticationError as error:
            wrong = "authentication failed" in str(error).lower()
            raise RayplaneError((WRONG_TOKEN if wrong else NO_TOKEN).format(address=self._address)) from error
        except OSError as error:
            raise RayplaneError(NOBODY.format(address=self._address)) from error
        except (RuntimeError, ValueError) as error:
            raise RayplaneError(f"{self._address}: {str(error).strip().splitlines()[-1]}") from error


def _submission(details: Any) -> Submission:
    name = (details.metadata or {}).get(JOB, "")
    return Submission(details.submission_id, name, str(details.status.value), details.message or "", details.driver_exit_code)
