"""A WorkerGroup is the gang of ranks of one attempt of one job, seen from its owner.

    start ──▶ every rank is spawned, meets the others at a store, joins ──▶ messages ──▶ kill / close
      ▲──────── ranks that have parked keep their process ◀── recall ◀──────────┘

A rank is a child process `python -m ENTRY --fd N` that speaks JSON lines over a socket pair with its owner:

    owner to rank    {"type": "host_store", "address"}                         rank 0 only: open the store, answer "store"
                     {"type": "join", "rank", "host", "port", "device", "address", "lease", "log", "config"}
                                                                               address: this rank's host, as its peers reach it;
                                                                               log: the file for its output
                     {"type": "drain"}                                         save after the current step and end
                     {"type": "recall"}                                        leave the attempt, keep nothing of it, say "parked"
    rank to owner    {"type": "ready"}                                         imports done
                     {"type": "store", "host", "port"}
                     {"type": "failed", "kind", "message", "traceback"}        then it exits with code 1, or waits to be recalled
                     {"type": "parked"}                                        the next host_store or join is of another attempt
                     anything else: the entry's own messages, handed on untouched
    owner itself     {"type": "exit", "code", "signal", "log"}                 a rank's process ended; log: its last lines
                     {"type": "lost", "reason", "kind"}                        its stage actor (kind rank) or node is gone, and it too

"code" is -N and "signal" N after signal N, else "signal" is 0. A "failed" can also come from the owner, about a rank that did not
start in time or sent what is no message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

from rayplane.rank.lease import Lease
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement
from rayplane.spec.report import ServedReport, StepReport

Message = dict[str, Any]
REPORTS = ("step", "served")
"""Types of messages that carry reports."""


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A message of a rank, or of its owner about it (`type` "exit" or "lost")."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: the layout's ranks at their places, each running the module `entry` with `config`."""

    name: str
    """Job name; appears in process titles, logs and the placement group's name."""
    layout: Layout
    placement: Placement
    entry: str
    config: Message
    device: str = "cpu"
    """cpu or cuda."""
    log_dir: str = ""
    """Folder for each rank's output, as an absolute path that every node has; empty drops the output."""
    directory: str = ""
    """Where relative paths of the config begin: ranks run there, or where their owner does on a node that has no such folder."""
    lease: Lease | None = None
    """What its ranks hold from joining until the attempt is over."""
    devices: tuple[int, ...] = ()
    """Where several groups share this machine: which of its devices each rank gets; the first ones when empty."""
    cores: int = 1
    """Of a CPU, for each rank that has no GPU. A launch with 0 is light: it takes no place, and runs beside those that have one."""


class WorkerGroup(Protocol):
    """Owns the ranks of one job. One thread uses it; no call blocks longer than it says."""

    def start(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        """Place and spawn every rank; returns once they are spawned. Raises PlacementError when the cluster cannot hold them.

        Processes that have parked are used again, as the same ranks or others, where the launch wants the same of them; all others die.
        `give_up` is asked again and again where there is something to wait for; GaveUp follows when it says so.
        """

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """Messages that have come, waiting up to `timeout_s` for the first."""

    def send(self, message: Message) -> None:
        """Hand a message to every rank that lives."""

    def recall(self, timeout_s: float, gone: frozenset[int] = frozenset()) -> frozenset[int]:
        """End the attempt but not its processes: the ranks that have left it within the time, waiting for the next `start`.

        Those in `gone` are killed at once, those that do not answer in time afterwards; of what ranks had said, `poll` still tells.
        Ends of processes are no news from here on. Does not raise; ranks whose owner is gone are gone too.
        """

    def kill(self) -> None:
        """SIGKILL every rank; on return none is left. The places are kept for the next `start`."""

    def close(self) -> None:
        """Kill and give the places back; may be called twice."""


def step_report(message: Message) -> StepReport:
    """The report that a "step" message carries."""
    return StepReport(**_fields(message, StepReport))


def served_report(message: Message) -> ServedReport:
    """The report that a "served" message carries."""
    return ServedReport(**_fields(message, ServedReport))


def any_report(message: Message) -> StepReport | ServedReport:
    """The report that a message of REPORTS carries."""
    return step_report(message) if message["type"] == "step" else served_report(message)


def _fields(message: Message, kind: type[StepReport] | type[ServedReport]) -> Message:
    known = {f.name for f in fields(kind)}
    return {k: v for k, v in message.items() if k in known}
