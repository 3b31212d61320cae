"""The file of requests, read line by line: once to find all mistakes before anything is asked, once more to ask.

prompts.jsonl:3: temperature: input should be less than or equal to 2, got 3
prompts.jsonl:9: custom_id: 'a' stands on an earlier line too; give each line its own
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rayplane.api.batch.answers import Kept, digest
from rayplane.api.batch.lines import Ask, LineError, Terms, read_line
from rayplane.errors import Problem, SpecError

MAX_SHOWN = 10
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Census:
    """How many lines there are."""

    requests: int
    skipped: int
    """Of them, those that have their answers."""
    failed_before: int
    """Of those, the ones that were refused."""
    foreign: int
    """Answers to what is not in this file."""


def census(path: Path, terms: Terms, kept: Kept) -> Census:
    """Read the whole file. SpecError with the first mistakes, and how many more there are."""
    problems: list[Problem] = []
    seen: set[bytes] = set()
    num_bad = skipped = failed = 0
    for number, raw in _lines(path):
        try:
            ask = read_line(raw, number, terms)
            key = digest(ask.custom_id)
            if key in seen:
                raise LineError(f"{ask.custom_id!r:.80} stands on an earlier line too; give each line its own", "custom_id")
            seen.add(key)
            if _answered(ask, key, kept):
                skipped, failed = skipped + 1, failed + (key in kept.failed)
        except LineError as error:
            num_bad += 1
            if num_bad <= MAX_SHOWN:
                problems.append(_located(path, number, error))
    if num_bad > MAX_SHOWN:
        problems.append(Problem(f"{num_bad - MAX_SHOWN} more lines are wrong", file=str(path)))
    if not (problems or seen):
        problems.append(Problem('has no requests; write one on each line, such as {"prompt": "The sky is"}', file=str(path)))
    if problems:
        raise SpecError(problems)
    return Census(len(seen), skipped, failed, len(kept.requests) - skipped)


def unanswered(path: Path, terms: Terms, kept: Kept) -> Iterator[Ask]:
    """The requests that have no answers yet, one by one. SpecError where the file has changed, and not for the better."""
    for number, raw in _lines(path):
        try:
            ask = read_line(raw, number, terms)
            if not _answered(ask, digest(ask.custom_id), kept):
                yield ask
        except LineError as error:
            raise SpecError(_located(path, number, error)) from None


def _answered(ask: Ask, key: bytes, kept: Kept) -> bool:
    """Whether there is its answer. LineError where that is one to something else."""
    known = kept.requests.get(key)
    if known is not None and known != digest(ask.id):
        remedy = "give it another custom_id, take back the change (of the line, or of a default), or name another file with -o"
        raise LineError(f"{ask.custom_id!r:.80} was asked otherwise before, and has that answer; {remedy}", "custom_id")
    return known is not None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Those with something on them, and their numbers."""
    if path.exists() and not path.is_file():
        raise SpecError(Problem("is no file, and is read twice; save the requests to one", file=str(path)))
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text = (raw.removeprefix(BOM) if number == 1 else raw).strip()
                if text:
                    yield number, text
    except OSError as error:
        raise SpecError(Problem(f"cannot be read: {error.strerror}", file=str(path))) from None


def _located(path: Path, number: int, error: LineError) -> Problem:
    return Problem(error.message, error.field, str(path), number)
