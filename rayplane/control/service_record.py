"""What a run of a service adds up to: what its ranks computed and where their time went, for state.json and for the result."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.control.load import Load, ReplicaLoad
from rayplane.control.service_state import IngressFailed, MoveEnded, ReplicaFailed, Service, ServiceEvent
from rayplane.control.service_status import ReplicaStatus, ServiceStatus, service_state
from rayplane.control.service_task import ServiceTask
from rayplane.control.status import this_process
from rayplane.runtime.group import Message, served_report
from rayplane.spec.layout import Layout
from rayplane.spec.report import StageUse, stage_use


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """The end of a run, as the CLI prints it."""

    state: str
    """drained, stopped (by a second signal) or failed."""
    message: str
    exit_code: int
    urls: tuple[str, ...]
    steps: int
    """Of all replicas."""
    tokens: int
    """Of prompts and answers that were computed."""
    stages: tuple[StageUse, ...]
    restarts: int
    wall_s: float
    layout: Layout
    """Of a replica, at the end."""


class ServiceRecord:
    """Follows one run."""

    def __init__(self, task: ServiceTask):
        self._task = task
        self._seconds: defaultdict[tuple[int, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._steps, self._tokens = 0, 0
        self._began_s = time.monotonic()
        self._message = ""
        self._urls: tuple[str, ...] = ()
        self.restarts = 0
        self.load = Load()

    def listens(self, urls: Sequence[str]) -> None:
        """Where requests go now; what was is kept when nothing listens any more."""
        self._urls = tuple(urls) or self._urls

    def served(self, number: int, message: Message) -> None:
        """A rank of a replica has done something."""
        report = served_report(message)
        of_stage = self._seconds[number, report.stage]
        for phase, seconds in report.phases.items():
            of_stage[phase] += seconds
        if report.rank == 0:
            self._steps, self._tokens = self._steps + report.steps, self._tokens + report.tokens

    def note(self, event: ServiceEvent) -> None:
        """An event that changed the service."""
        if isinstance(event, ReplicaFailed | IngressFailed):
            self.restarts += 1
            self._message = f"replica {event.id}: {event.reason}" if isinstance(event, ReplicaFailed) else event.reason
        if isinstance(event, MoveEnded) and event.reason:
            self._message = f"did not move to {event.way}: {event.reason}"

    def status(self, service: Service, state: str = "", message: str = "") -> ServiceStatus:
        """For whoever looks from outside."""
        pid, host = this_process()
        load = self.load
        return ServiceStatus(
            name=self._task.name,
            state=state or service_state(service),
            urls=self._urls,
            model=self._task.model,
            layout=str(service.way),
            wanted=service.wanted,
            replicas=tuple(_of(service, load)),
            requests_s=round(load.requests_s, 3),
            output_tokens_s=round(load.output_tokens_s, 1),
            ttft_p99_s=load.ttft_p99_s,
            itl_p99_s=load.itl_p99_s,
            running=load.running,
            waiting=load.waiting,
            restarts=self.restarts,
            message=message or self._message,
            pid=pid,
            host=host,
            updated_unix_s=time.time(),
            moving=service.move is not None and service.ended is None,
            moves=service.moves,
            moves_given_up=service.given_up,
        )

    def result(self, service: Service, state: str, message: str, exit_code: int) -> ServiceResult:
        """The end of the run."""
        stages = tuple(stage_use(*place, dict(self._seconds[place])) for place in sorted(self._seconds))
        wall_s = time.monotonic() - self._began_s
        done = (self._urls, self._steps, self._tokens, stages, self.restarts, wall_s)
        return ServiceResult(state, message, exit_code, *done, service.way.layout)


def _of(service: Service, load: Load) -> list[ReplicaStatus]:
    out = []
    for replica in service.replicas:
        seen = load.replicas.get(replica.id, ReplicaLoad(state=""))
        figures = (seen.state, seen.running, seen.waiting, seen.kv_usage)
        out.append(ReplicaStatus(replica.id, replica.phase, replica.address, *figures, str(replica.way)))
    return out
