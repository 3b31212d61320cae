"""Records the steps that a job asks for: every change of phase of every rank, from a barrier on.

before step ─▶ barrier ─▶ clock.record ─▶ the step ─▶ clock.recorded ─▶ a file of this rank in the job's folder
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import torch

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import TraceSection
from rayplane.spec.report import RankTrace
from rayplane.telemetry.trace import write

log = logging.getLogger(__name__)


class Tracer:
    """One rank's recorder; without a section it does nothing."""

    def __init__(self, section: TraceSection | None, mesh: Mesh, directory: Path):
        self._steps = range(section.first, section.first + section.steps) if section else range(0)
        self._mesh, self._directory = mesh, directory
        self._start_unix_s = 0.0

    def before(self, step: int) -> None:
        """Meet the other ranks and begin to record, if the step (counted from 1) is one to record."""
        if step not in self._steps:
            return
        # A part for each rank: all leave a ring at about the same time.
        self._mesh.world.all_reduce(torch.zeros(self._mesh.world.size, device=self._mesh.device))
        if self._mesh.device.type == "cuda":
            torch.cuda.synchronize(self._mesh.device)
        self._mesh.clock.record()
        self._start_unix_s = time.time()

    def after(self, step: int) -> None:
        """Write what was recorded. A trace that cannot be written is missing; training goes on."""
        if step not in self._steps:
            return
        stretches = self._mesh.clock.recorded()
        trace = RankTrace(self._mesh.rank, step, self._mesh.layout, os.uname().nodename, self._start_unix_s, stretches)
        try:
            write(self._directory, trace)
        except OSError as error:
            log.warning("the trace of step %d could not be written: %s", step, error)
