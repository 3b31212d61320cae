"""Launches of the dummy rank, and waiting for what the operating system does."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rayplane.runtime.group import Launch, RankMessage, WorkerGroup
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

HERE = Path(__file__).parent
PYTHONPATH = os.pathsep.join([str(HERE), str(HERE.parent.parent)])


def eventually(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition holds before the time is up."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def exists(pid: int) -> bool:
    """Whether a process is there, be it as a zombie."""
    return Path(f"/proc/{pid}").exists()


def runs(pid: int) -> bool:
    """Whether a process runs. An orphan that has ended stays a zombie until init gets round to it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Process ids of the children of a process, and of theirs."""
    parents = {int(p.name): parent(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()}
    found, new = set[int](), {pid}
    while new := {child for child, of in parents.items() if of in new} - found:
        found |= new
    return found


def parent(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def launch(does: str = "step", ranks: int = 4, log_dir: str = "", **config: object) -> Launch:
    placement = Placement((Slot(0, 0, 0, tuple(range(ranks)), "", ""),))
    return Launch("dummy", Layout(tp=ranks), placement, "dummy_rank", {"does": does, **config}, log_dir=log_dir)


def collect(group: WorkerGroup, until: Callable[[list[RankMessage]], bool], timeout_s: float = 15.0) -> list[RankMessage]:
    """Messages until the condition holds of all that came; fails when it does not in time."""
    came: list[RankMessage] = []
    end_s = time.monotonic() + timeout_s
    while not until(came):
        assert time.monotonic() < end_s, f"only these came: {came[-20:]}"
        came += group.poll(0.2)
    return came


def ranks_of(messages: list[RankMessage], kind: str) -> set[int]:
    return {m.rank for m in messages if m.message["type"] == kind}


def all_started(group: WorkerGroup, ranks: int = 4) -> dict[int, int]:
    """Process id by rank, once all have joined."""
    came = collect(group, lambda seen: len(ranks_of(seen, "started")) == ranks)
    return {m.rank: m.message["pid"] for m in came if m.message["type"] == "started"}
