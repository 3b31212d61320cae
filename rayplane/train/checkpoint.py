"""Saving and loading: complete or absent, under any layout.

    save     each rank: a copy of its owned boxes; training goes on while a thread does the rest
                        the copies ─▶ .step-00000100.tmp/rank-N.safetensors, fsync ─▶ boxes to rank 0
             rank 0:    tokenizer's files, manifest.json, fsync ─▶ rename to step-00000100, fsync the directory ─▶ prune ─▶ tell all
    load     each rank: for every part of its weights, the overlap with the boxes of the manifest

An element is written once: every rank writes what it owns, and of what replicas hold alike each writes some tensors. A failed save
leaves the older checkpoints as they were.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from rayplane.comm.mesh import Mesh
from rayplane.errors import CheckpointError
from rayplane.model.checkpoint_source import Boxes
from rayplane.spec.manifest import NAME, Box, Manifest, complete, described, folder_name
from rayplane.spec.model import ModelSpec
from rayplane.train.agree import gathered
from rayplane.train.carried import NO_TOKENIZER, Carried
from rayplane.train.share import Progress, Share, State, Tensor, copied, file_name


@dataclass(frozen=True, slots=True)
class Store:
    """A job's checkpoint directory, as one rank uses it."""

    directory: Path
    keep: int
    model: ModelSpec
    mesh: Mesh
    tokenizer: Carried = NO_TOKENIZER
    """What rank 0 lays beside the weights."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))

    def start_save(self, progress: Progress, state: State) -> Future[Path]:
        """Copy the state as it is now and save it beside training; every rank calls it. A save waits for the one before.

        The result is the checkpoint's folder, or CheckpointError on all ranks when one could not write.
        """
        return self._thread.submit(self._save, progress, copied(state, self.mesh))

    def _save(self, progress: Progress, share: Share) -> Path:
        step = progress.step
        temporary = self.directory / f".{folder_name(step)}.tmp"
        problem = ""
        try:
            self._write(temporary, share.tensors)
        except (OSError, SafetensorError) as error:
            problem = f"rank {self.mesh.rank}: {error}"
        answers = self.gather({"problem": problem, "boxes": {n: asdict(b) for n, b in share.boxes().items()}})
        if self.mesh.rank == 0:
            problem = "; ".join(a["problem"] for a in answers if a["problem"])
            problem = problem or self._commit(temporary, progress, answers)
            if problem:
                shutil.rmtree(temporary, ignore_errors=True)
        problem = self.gather({"problem": problem})[0]["problem"]
        if problem:
            raise CheckpointError(f"checkpoint of step {step} in {self.directory} failed: {problem}. {self._still_good()}")
        return self.directory / folder_name(step)

    def load(self, folder: Path, state: State, data: str) -> Progress:
        """Fill this rank's pieces from a complete checkpoint, whatever layout wrote it; `data` is the fingerprint of the job's data."""
        manifest = Manifest.read(folder)
        manifest.check_model(self.model, folder)
        manifest.check_data(data, folder)
        boxes = Boxes(folder, manifest, f"remove {folder} to go on from an older checkpoint")
        for piece in state:
            boxes.fill(piece.name, piece.part.chunk, piece.data)
        return Progress(manifest.step, manifest.samples, manifest.data)

    def clean(self) -> None:
        """Remove what an interrupted save left behind; rank 0 calls it before training starts."""
        for leftover in self.directory.glob(".step-*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """Write this rank's file, if it has anything to write."""
        if tensors:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / file_name(self.mesh.rank)
            save_file(tensors, path)
            _fsync(path)

    def _commit(self, temporary: Path, progress: Progress, answers: list[dict[str, Any]]) -> str:
        """Write the manifest, give the folder its name, drop the oldest; returns what went wrong, or nothing."""
        tensors: dict[str, list[Box]] = {}
        for answer in answers:
            for key, box in answer["boxes"].items():
                tensors.setdefault(key.rpartition("@")[0], []).append(Box(**box))
        boxes = {name: tuple(found) for name, found in tensors.items()}
        what = (progress.step, progress.samples, progress.data, described(self.model))
        manifest = Manifest(*what, boxes, str(self.mesh.layout), self.tokenizer.name)
        final = self.directory / folder_name(progress.step)
        try:
            for name, content in {**self.tokenizer.files, NAME: manifest.dump().encode()}.items():
                (temporary / name).write_bytes(content)
                _fsync(temporary / name)
            _fsync(temporary)
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
            _fsync(self.directory)
        except OSError as error:
            return f"rank 0: {error}"
        for old in complete(self.directory)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return ""

    def gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's JSON value, in rank order; only while no save is under way."""
        return gathered(self.mesh.axes["save"], value, self.mesh.device)

    def _still_good(self) -> str:
        good = complete(self.directory)
        if not good:
            return "No older checkpoint exists. Free space, or choose another checkpoint.dir"
        return f"{good[-1]} is still good: free space, or choose another checkpoint.dir, and run again to go on from there"


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
