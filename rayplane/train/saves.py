"""When a rank's state is saved, to disk and to memory, each beside the steps that follow; one save of a kind at a time.

every: 100, memory_every: 10      memory after 10, 20, …; disk after 100, 200, …, and after the last step, where memory is left out
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from rayplane.spec.job import CheckpointSection
from rayplane.telemetry.channel import Channel
from rayplane.train.checkpoint import Store
from rayplane.train.memory import Memory
from rayplane.train.rank import TrainRank


class Saves:
    """The saves that are under way, if any; rank 0 tells the owner what comes of them."""

    def __init__(self, channel: Channel, rank: TrainRank, section: CheckpointSection, checkpoints: Store, memory: Memory | None):
        self._channel, self._rank, self._section = channel, rank, section
        self._checkpoints, self._memory = checkpoints, memory
        self._step = 0
        self._saving: Future[Path] | None = None
        self._copying: Future[str] | None = None
        self._warned = False

    def after(self, step: int, last: bool) -> bool:
        """Begin what is due after a step; whether anything was, and training had to wait for the copy."""
        self._announce(patient=False)
        every = self._section.memory_every
        copies, saves = every is not None and step % every == 0 and not last, last or step % self._section.every == 0
        if copies and self._memory:
            self._report_copy(patient=True)
            self._copying = self._memory.start_save(self._rank.progress, self._rank.optimizer.tensors())
        if saves:
            self._announce(patient=True)
            self._step, self._saving = step, self._rank.start_save(self._checkpoints)
        return copies or saves

    def finish(self) -> None:
        """Wait for what is under way. The state is on disk then, and the copies in memory go."""
        self._announce(patient=True)
        self._report_copy(patient=True)
        if self._memory:
            self._memory.remove()

    def close(self) -> None:
        """Wait until no thread writes any more: what it leaves is whole, or the next attempt cleans it away."""
        under_way: list[Future[Any]] = [f for f in (self._saving, self._copying) if f]
        wait(under_way)

    def _announce(self, patient: bool) -> None:
        """Raise what went wrong with the save under way, or tell that it is done, if it is or `patient` is set."""
        self._report_copy(patient=False)
        if self._saving is not None and (patient or self._saving.done()):
            path, self._saving = self._saving.result(), None
            self._tell({"type": "checkpoint", "step": self._step, "path": str(path)})

    def _report_copy(self, patient: bool) -> None:
        """Say once that copies cannot be made: the job goes on."""
        if self._copying is not None and (patient or self._copying.done()):
            problem, self._copying = self._copying.result(), None
            if problem and not self._warned:
                message = f"no copy in memory: {problem}; the job goes on, and a restart begins from an older copy or from the disk"
                self._tell({"type": "warning", "message": message})
            self._warned = self._warned or bool(problem)

    def _tell(self, message: dict[str, object]) -> None:
        if self._rank.mesh.rank == 0:
            self._channel.send(message)
