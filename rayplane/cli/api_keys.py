"""The keys that a service asks for, read once when it starts.

file    a key on each line; empty lines and those that begin with # are passed over
env     keys, separated by commas
"""

from __future__ import annotations

import os
from pathlib import Path

from rayplane.errors import Problem, SpecError
from rayplane.spec.serve_section import KeysSection

FIELD = "serve.api_keys"
REMEDY = "add one, or leave it out where everyone may ask"


def api_keys(section: KeysSection | None) -> tuple[str, ...]:
    """All of them; none where everyone may ask. SpecError where the job names a source that has none."""
    if section is None:
        return ()
    if section.env is None:
        return keys_in(Path(str(section.file)).expanduser(), f"{FIELD}.file")
    if keys := _keys(os.environ.get(section.env, "").split(",")):
        return keys
    raise SpecError(Problem(f"the environment variable {section.env} has no key; {REMEDY}", FIELD))


def keys_in(file: Path, field: str) -> tuple[str, ...]:
    """Those of a file. SpecError names the field, or the option, that named the file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SpecError(Problem(f"cannot read {file}: {reason}", field)) from error
    if keys := _keys(lines):
        return keys
    raise SpecError(Problem(f"{file} has no key; {REMEDY}", field))


def _keys(lines: list[str]) -> tuple[str, ...]:
    return tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
