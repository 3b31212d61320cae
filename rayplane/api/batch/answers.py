"""The file of answers: a line for each request that has its answer, in the order in which they came, and what is there already.

{"id": "batch_req_3f…", "custom_id": "a", "response": {"status_code": 200, "request_id": "cmpl-…", "body": {…}}, "error": null}

A line is written at once and whole. What was cut off by the end of the process is the last line, without its end; it is dropped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rayplane.api.batch.lines import ID_PREFIX, Ask
from rayplane.errors import Problem, RayplaneError, SpecError

BEGINS = f'{{"id": "{ID_PREFIX}'.encode()
OK = 200
REMEDY = "name another file with -o"


def digest(text: str) -> bytes:
    """Stands for an id in memory, however long that is."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file of answers holds."""

    requests: dict[bytes, bytes] = field(default_factory=dict)
    """What was asked (its `id`) by custom_id; both as digests."""
    failed: frozenset[bytes] = frozenset()
    """Those of the custom_ids whose request was refused."""
    whole_bytes: int = 0
    """Where the last whole line ends."""


class Answers:
    """The file, held by this process alone."""

    def __init__(self, path: Path, file: IO[bytes]):
        self._path, self._file = path, file
        self.kept = _kept(path, file)

    def begin(self) -> None:
        """Drop a line that was cut off; the next one comes in its place."""
        self._file.truncate(self.kept.whole_bytes)
        self._file.seek(0, os.SEEK_END)

    def add(self, ask: Ask, status: int, body: Any, request_id: str) -> None:
        """Write an answer. RayplaneError where that cannot be done."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        line = {"id": ask.id, "custom_id": ask.custom_id, "response": response, "error": None}
        left = memoryview(json.dumps(line).encode() + b"\n")
        try:
            while left:  # a disk that fills up takes a part
                left = left[self._file.write(left) :]
        except OSError as error:
            raise RayplaneError(f"{self._path}: an answer cannot be written: {error.strerror}; the same command goes on") from None


@contextmanager
def open_answers(path: Path, prompts: Path) -> Iterator[Answers]:
    """Make the file where there is none, and hold it. SpecError where it is none of answers; RayplaneError where another has it."""
    if path.exists() and not path.is_file():
        raise SpecError(Problem(f"is no file to come back to; {REMEDY}", file=str(path)))
    if path.exists() and prompts.exists() and path.samefile(prompts):
        raise SpecError(Problem(f"holds the prompts; {REMEDY}", file=str(path)))
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise RayplaneError(f"{path}: cannot be written: {error.strerror}; {REMEDY}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RayplaneError(f"{path}: another batch writes to it; wait for its end, or {REMEDY}") from None
        yield Answers(path, file)


def _kept(path: Path, file: IO[bytes]) -> Kept:
    requests: dict[bytes, bytes] = {}
    failed: set[bytes] = set()
    whole_bytes = 0
    with open(os.dup(file.fileno()), "rb") as reading:  # noqa: PTH123 (a descriptor, not a path)
        for number, line in enumerate(reading, 1):
            if not line.endswith(b"\n"):
                if not line.startswith(BEGINS[: len(line)]):
                    raise _foreign(path, number)
                break
            whole_bytes += len(line)
            try:
                known = json.loads(line)
                key, status = digest(known["custom_id"]), int(known["response"]["status_code"])
                requests[key] = digest(known["id"])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise _foreign(path, number) from None
            if status != OK:
                failed.add(key)
    return Kept(requests, frozenset(failed), whole_bytes)


def _foreign(path: Path, number: int) -> SpecError:
    return SpecError(Problem(f"is no answer of a batch; {REMEDY}", file=str(path), line=number))
