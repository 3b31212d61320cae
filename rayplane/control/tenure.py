"""How often in a row a job's controller has died without an end: a file that lies in the folder while one is at work.

died     controller.json        what follows
0        {"died": 0}            the job runs; an end in order, also a failed one, takes the file away
1        {"died": 1}            the file was still there: the one before was killed, or its machine went down
…
9        refused                limits.restarts.controller (8) is spent
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rayplane.control.status import write_json
from rayplane.errors import RayplaneError
from rayplane.spec.job import LimitsSection, RestartsSection

TENURE_FILE = "controller.json"


@contextmanager
def tenure(directory: Path, limits: LimitsSection) -> Iterator[int]:
    """Be the folder's controller; gives how many before it died in a row. RayplaneError where these were too many."""
    path = directory / TENURE_FILE
    died = _died(path)
    restarts = limits.restarts if isinstance(limits.restarts, RestartsSection) else RestartsSection()
    if died > restarts.controller:
        raise RayplaneError(
            f"runs in a row whose driver died without an end: {died}; limits.restarts.controller ({restarts.controller}) is spent. "
            f"Find out what kills it (the memory of its machine, a time limit), then raise limits.restarts.controller, or remove {path}"
        )
    with suppress(OSError):  # a full disk costs the count, not the job
        directory.mkdir(parents=True, exist_ok=True)
        write_json(path, {"died": died})
    try:
        yield died
    finally:
        path.unlink(missing_ok=True)


def _died(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["died"]) + 1
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return 1
