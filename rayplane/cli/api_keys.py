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


def api_keys(section: KeysSection | None) -> tuple[str, ...]:
    """All of them; none where everyone may ask. SpecError where the job names a source that has none."""
    if section is None:
        return ()
    if section.env is not None:
        found, where = os.environ.get(section.env, "").split(","), f"the environment variable {section.env}"
    else:
        found, where = _lines(Path(str(section.file)).expanduser()), str(section.file)
    keys = tuple(key for line in found if (key := line.strip()) and not key.startswith("#"))
    if not keys:
        raise SpecError(Problem(f"{where} has no key; add one, or leave api_keys out to let everyone ask", FIELD))
    return keys


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SpecError(Problem(f"cannot read {file}: {reason}", f"{FIELD}.file")) from error
