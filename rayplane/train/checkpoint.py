"""Saving and loading: complete or absent, under any layout.

    save     each rank: a copy of its owned boxes; training goes on while a thread does the rest
                        the copies ─▶ .step-00000100.tmp/rank-N.safetensors, fsync ─▶ boxes to rank 0
             rank 0:    manifest.json, fsync ─▶ rename to step-00000100, fsync the directory ─▶ prune ─▶ tell all
    load     each rank: for every part of its weights, the overlap with the boxes of the manifest

An element is written once: every rank writes what it owns, and of what replicas hold alike each writes some tensors. A failed save
leaves the older checkpoints as they were.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rayplane.comm.mesh import Mesh
from rayplane.errors import CheckpointError
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk, owned_of
from rayplane.train.manifest import NAME, Box, Manifest, complete, described, folder_name
from rayplane.train.state import Piece

Tensor = torch.Tensor
State = Iterable[Piece]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is: steps done, samples taken, and which data they came from (its fingerprint)."""

    step: int = 0
    samples: int = 0
    data: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """A job's checkpoint directory, as one rank uses it."""

    directory: Path
    keep: int
    model: ModelSpec
    mesh: Mesh
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))

    def start_save(self, progress: Progress, state: State) -> Future[Path]:
        """Copy the state as it is now and save it beside training; every rank calls it. A save waits for the one before.

        The result is the checkpoint's folder, or CheckpointError on all ranks when one could not write.
        """
        tensors, boxes = self._copies(state)
        return self._thread.submit(self._save, progress, tensors, boxes)

    def _save(self, progress: Progress, tensors: dict[str, Tensor], boxes: dict[str, Box]) -> Path:
        step = progress.step
        temporary = self.directory / f".{folder_name(step)}.tmp"
        problem = ""
        try:
            self._write(temporary, tensors)
        except (OSError, SafetensorError) as error:
            problem = f"rank {self.mesh.rank}: {error}"
        answers = self._gather({"problem": problem, "boxes": {n: asdict(b) for n, b in boxes.items()}})
        if self.mesh.rank == 0:
            problem = "; ".join(a["problem"] for a in answers if a["problem"])
            problem = problem or self._commit(temporary, progress, answers)
            if problem:
                shutil.rmtree(temporary, ignore_errors=True)
        problem = self._gather({"problem": problem})[0]["problem"]
        if problem:
            raise CheckpointError(f"checkpoint of step {step} in {self.directory} failed: {problem}. {self._still_good()}")
        return self.directory / folder_name(step)

    def load(self, folder: Path, state: State, data: str) -> Progress:
        """Fill this rank's pieces from a complete checkpoint, whatever layout wrote it; `data` is the fingerprint of the job's data."""
        manifest = Manifest.read(folder)
        manifest.check_model(self.model, folder)
        manifest.check_data(data, folder)
        reader = _Reader(folder)
        for piece in state:
            filled = sum(reader.copy(box, piece) for box in manifest.tensors.get(piece.name, ()))
            if filled != piece.data.numel():
                raise CheckpointError(f"{folder}: {piece.name} is incomplete: {filled} of {piece.data.numel()} elements")
        return Progress(manifest.step, manifest.samples, manifest.data)

    def clean(self) -> None:
        """Remove what an interrupted save left behind; rank 0 calls it before training starts."""
        for leftover in self.directory.glob(".step-*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _copies(self, state: State) -> tuple[dict[str, Tensor], dict[str, Box]]:
        """This rank's share: its tensors, copied to the host, and its boxes, by key."""
        file = f"rank-{self.mesh.rank:05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        boxes: dict[str, Box] = {}
        for piece in state:
            mine = self._mine(piece)
            if mine is None:
                continue
            key = f"{piece.name}@{','.join(map(str, mine.offset))}"
            part = piece.data[mine.within(piece.part.chunk).slices].detach()
            tensors[key] = torch.empty(part.shape, dtype=part.dtype).copy_(part)
            boxes[key] = Box(mine.offset, mine.size, file, key, _crc32(tensors[key]))
        return tensors, boxes

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """Write this rank's file, if it has anything to write."""
        if tensors:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank-{self.mesh.rank:05d}.safetensors"
            save_file(tensors, path)
            _fsync(path)

    def _mine(self, piece: Piece) -> Chunk | None:
        """What this rank has to write of a piece: what it owns; of what replicas hold alike, its share of the tensors."""
        owned = owned_of(piece.part.tensor, self.mesh.layout, self.mesh.coord)
        if owned is None or zlib.crc32(piece.name.encode()) % piece.num_copies != piece.copy:
            return None
        return owned.overlap(piece.part.chunk)

    def _commit(self, temporary: Path, progress: Progress, answers: list[dict[str, Any]]) -> str:
        """Write the manifest, give the folder its name, drop the oldest; returns what went wrong, or nothing."""
        tensors: dict[str, list[Box]] = {}
        for answer in answers:
            for key, box in answer["boxes"].items():
                tensors.setdefault(key.rpartition("@")[0], []).append(Box(**box))
        boxes = {name: tuple(found) for name, found in tensors.items()}
        manifest = Manifest(progress.step, progress.samples, progress.data, described(self.model), boxes, str(self.mesh.layout))
        final = self.directory / folder_name(progress.step)
        try:
            (temporary / NAME).write_text(manifest.dump())
            _fsync(temporary / NAME)
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

    def _gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's JSON value, in rank order."""
        if self.mesh.device.type == "cuda":
            torch.cuda.set_device(self.mesh.device)
        raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.mesh.device)
        world = self.mesh.axes["save"]
        sizes = world.all_gather(torch.tensor([len(raw)], device=self.mesh.device)).tolist()
        parts = world.all_gather(raw, sizes).cpu().split(sizes)
        return [json.loads(bytes(p.numpy())) for p in parts]

    def _still_good(self) -> str:
        good = complete(self.directory)
        if not good:
            return "No older checkpoint exists. Free space, or choose another checkpoint.dir"
        return f"{good[-1]} is still good: free space, or choose another checkpoint.dir, and run again to go on from there"


class _Reader:
    """Boxes of one checkpoint; each file is opened once, each box's bytes are checked."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._open: dict[str, Any] = {}

    def copy(self, box: Box, piece: Piece) -> int:
        """Copy the overlap of a box with a rank's piece; returns its number of elements."""
        here = piece.part.chunk
        common = box.chunk.overlap(here)
        if common is None:
            return 0
        path, remedy = self._folder / box.file, f"remove {self._folder} to go on from an older checkpoint"
        try:
            if box.file not in self._open:
                self._open[box.file] = safe_open(path, framework="pt")
            values = self._open[box.file].get_tensor(box.key)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: cannot read {box.key} ({error}); {remedy}") from error
        if _crc32(values) != box.crc32:
            raise CheckpointError(f"{path}: {box.key} is damaged (its checksum differs); {remedy}")
        piece.data[common.within(here).slices] = values[common.within(box.chunk).slices].to(piece.data.device)
        return common.numel


def _crc32(x: Tensor) -> int:
    return zlib.crc32(x.view(-1).view(torch.uint8).numpy().data)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
