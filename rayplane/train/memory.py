"""Copies of a job's state in the hosts' memory: checkpoints that touch no disk, each host's files also on the next host.

    save     each rank: a copy of its share; training goes on while a thread does the rest
                        the copy ─▶ .step-00000015.tmp/rank-N.safetensors ─▶ the same bytes to its partner on the next host
             first rank of each host: manifest.json ─▶ rename to step-00000015 ─▶ when all have: remove the older one
    restart  the newest step whose every file is on some host; what a host's ranks need and it lacks comes from one that has it

A save counts on no host before every rank has written all of it. One that fails leaves the older copy as it was.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from rayplane.comm.communicator import Communicator
from rayplane.comm.mesh import Mesh
from rayplane.errors import CheckpointError
from rayplane.spec.manifest import NAME, Box, Manifest, described, folder_name
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk
from rayplane.train.agree import gathered
from rayplane.train.couriers import Journey, carry, reserve
from rayplane.train.holdings import Holding, lead, newest_whole, partner, transfers
from rayplane.train.ram_folder import RamFolder
from rayplane.train.room import check_room
from rayplane.train.share import Progress, Share, State, copied, file_name, mine

HOST = torch.device("cpu")
MARGIN_BYTES = 1 << 20
"""A file is a little larger than its tensors."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The copies, as one rank uses them."""

    folder: RamFolder
    model: ModelSpec
    mesh: Mesh
    hosts: tuple[str, ...]
    """By rank: equal where ranks share their host's memory."""
    chunks: tuple[Mapping[str, Chunk], ...]
    """By rank: the boxes of its file, by key."""
    _axis: Communicator
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "memory"))

    @classmethod
    def open(cls, folder: RamFolder, model: ModelSpec, mesh: Mesh, state: State) -> Memory:
        """Every rank calls it, before the first step; RayplaneError on all when a host has too little room for two copies."""
        axis = mesh.beside("memory")
        boxes = {key: (chunk, values.nbytes) for key, chunk, values in mine(state, mesh)}
        size = sum(count for _, count in boxes.values()) + MARGIN_BYTES
        chunks = {key: asdict(chunk) for key, (chunk, _) in boxes.items()}
        answers = gathered(axis, {"host": folder.host, "room": folder.room_bytes(), "size": size, "chunks": chunks}, HOST)
        hosts = tuple(a["host"] for a in answers)
        check_room(str(folder.path.parent), hosts, [a["size"] for a in answers], [a["room"] for a in answers])
        return cls(folder, model, mesh, hosts, tuple({k: _chunk(c) for k, c in a["chunks"].items()} for a in answers), axis)

    @property
    def leads(self) -> bool:
        """Whether this rank is the first on its host, which acts for it."""
        return lead(self.hosts, self.mesh.rank) == self.mesh.rank

    def start_save(self, progress: Progress, state: State) -> Future[str]:
        """Copy the state as it is now and save it beside training; every rank calls it. A save waits for the one before.

        The result is what went wrong, the same on all ranks, or nothing.
        """
        return self._thread.submit(self._save, progress, copied(state, self.mesh))

    def _save(self, progress: Progress, share: Share) -> str:
        final = self.folder.path / folder_name(progress.step)
        temporary = final.with_name(f".{final.name}.tmp")
        sums = [box.crc32 for box in share.boxes().values()]
        problem = self._tried(lambda: _write(temporary, share))
        size = (temporary / share.file).stat().st_size if share.tensors and not problem else 0
        answers = self._gather({"problem": problem, "size": size, "sums": sums})
        problem = _joined(answers) or self._double(temporary, [a["size"] for a in answers])
        if not problem:
            manifest = self._manifest(progress, [a["sums"] for a in answers]) if self.leads else ""
            problem = self._agreed(lambda: _commit(temporary, final, manifest) if self.leads else None)
        if self.leads and problem:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(final, ignore_errors=True)
        elif self.leads:
            for old in (folder for folder in self.folder.steps() if folder != final):
                shutil.rmtree(old, ignore_errors=True)
        return problem

    def _double(self, folder: Path, sizes: Sequence[int]) -> str:
        """Each rank's file also to its partner; what went wrong. Memory is taken before anything travels."""
        if (mate := partner(self.hosts, self.mesh.rank)) is None:
            return ""
        wards = [rank for rank, size in enumerate(sizes) if size and partner(self.hosts, rank) == self.mesh.rank]
        received = [Journey(folder / file_name(rank), sizes[rank], rank, sends=False) for rank in wards]
        if problem := self._agreed(lambda: self._reserve(folder, received)):
            return problem
        own = sizes[self.mesh.rank]
        sent = [Journey(folder / file_name(self.mesh.rank), own, mate, sends=True)] if own else []
        carry(self._axis, [*received, *sent])
        return self._agreed(lambda: None)  # the folder keeps its name until every rank of the host has received

    def _reserve(self, folder: Path, journeys: Sequence[Journey]) -> None:
        folder.mkdir(exist_ok=True)
        for journey in journeys:
            reserve(journey.path, journey.size)

    def _manifest(self, progress: Progress, sums: Sequence[Sequence[int]]) -> str:
        tensors: dict[str, list[Box]] = {}
        for rank, (chunks, of_rank) in enumerate(zip(self.chunks, sums, strict=True)):
            for (key, chunk), crc32 in zip(chunks.items(), of_rank, strict=True):
                box = Box(chunk.offset, chunk.size, file_name(rank), key, crc32)
                tensors.setdefault(key.rpartition("@")[0], []).append(box)
        boxes = {name: tuple(found) for name, found in tensors.items()}
        what = (progress.step, progress.samples, progress.data, described(self.model))
        return Manifest(*what, boxes, str(self.mesh.layout)).dump()

    def find(self, least: int) -> tuple[Holding | None, dict[str, Holding]]:
        """The newest whole save of step `least` or later, and what each host has of it; every rank calls it."""
        held = [asdict(holding) for holding in self._holdings()] if self.leads else []
        answers = self._gather({"held": held})
        by_host = {host: [_holding(h) for h in a["held"]] for host, a in reversed(list(zip(self.hosts, answers, strict=True)))}
        found = newest_whole(by_host.values(), least)
        return found, {host: h for host, of_host in by_host.items() for h in of_host if found and _same(h, found)}

    def bring(self, found: Holding, having: Mapping[str, Holding], state: State) -> tuple[Path, str]:
        """(the save's folder with all that this host's ranks need, what went wrong); every rank calls it."""
        folder = self.folder.path / folder_name(found.step)
        first = self.mesh.rank == self.hosts.index(next(host for host in self.hosts if host in having))
        lacking = any(host not in having for host in self.hosts)
        answers = self._gather({"manifest": (folder / NAME).read_text() if first and lacking else ""})
        text = "".join(a["manifest"] for a in answers)
        strange = self.leads and self.folder.host not in having
        if problem := self._agreed(lambda: _receive(folder, text) if strange else None):
            return folder, problem
        wanted = sorted(file for file in _files_for(Manifest.read(folder), state) if not (folder / file).is_file())
        sizes = {file.name: file.stat().st_size for file in folder.glob("rank-*")} if self.leads else {}
        answers = self._gather({"wanted": wanted, "sizes": sizes})
        held = {host: having[host].files if host in having else () for host in self.hosts}
        known = {file: size for a in answers for file, size in a["sizes"].items()}
        return folder, self._fetch(folder, [a["wanted"] for a in answers], held, known)

    def _fetch(self, folder: Path, wanted: Sequence[Sequence[str]], held: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> str:
        plan, here = transfers(self.hosts, wanted, held), self.mesh.rank
        coming = [Journey(folder / f".{t.file}", sizes[t.file], t.source, sends=False) for t in plan if t.target == here]
        if problem := self._agreed(lambda: self._reserve(folder, coming)):
            return problem
        for transfer in plan:  # one after the other, in the same order everywhere
            if transfer.source == here:
                carry(self._axis, [Journey(folder / transfer.file, sizes[transfer.file], transfer.target, sends=True)])
            if transfer.target == here:
                carry(self._axis, [coming.pop(0)])
                (folder / f".{transfer.file}").rename(folder / transfer.file)
        return self._agreed(lambda: None)

    def keep(self, step: int) -> None:
        """Remove every other save; 0 removes all. Every rank calls it before training."""
        if self.leads:
            self.folder.keep(folder_name(step))
        self._agreed(lambda: None)

    def remove(self) -> None:
        """Remove the folder: the job's state is on disk."""
        if self.leads:
            shutil.rmtree(self.folder.path, ignore_errors=True)

    def _holdings(self) -> list[Holding]:
        out = []
        for folder in self.folder.steps():
            try:
                manifest = Manifest.read(folder)
                mark = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
            except (CheckpointError, OSError):
                continue
            needed = tuple(sorted({box.file for boxes in manifest.tensors.values() for box in boxes}))
            out.append(Holding(manifest.step, mark, needed, tuple(f for f in needed if (folder / f).is_file())))
        return out

    def _gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        return gathered(self._axis, value, HOST)

    def _agreed(self, action: Callable[[], object]) -> str:
        """Act; what went wrong on any rank, the same on all."""
        return _joined(self._gather({"problem": self._tried(action)}))

    def _tried(self, action: Callable[[], object]) -> str:
        try:
            action()
        except (OSError, SafetensorError) as error:
            return f"rank {self.mesh.rank}: {error}"
        return ""


def _write(folder: Path, share: Share) -> None:
    folder.mkdir(exist_ok=True)
    if share.tensors:
        save_file(share.tensors, folder / share.file)


def _commit(temporary: Path, final: Path, manifest: str) -> None:
    temporary.mkdir(exist_ok=True)
    (temporary / NAME).write_text(manifest)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)


def _receive(folder: Path, manifest: str) -> None:
    """A host that has nothing of a save begins with its manifest; what it has of another save of that step goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / NAME).write_text(manifest)


def _files_for(manifest: Manifest, state: State) -> set[str]:
    """Those that a rank with these pieces reads."""
    boxes = ((box, piece) for piece in state for box in manifest.tensors.get(piece.name, ()))
    return {box.file for box, piece in boxes if box.chunk.overlap(piece.part.chunk) is not None}


def _same(one: Holding, other: Holding) -> bool:
    return (one.step, one.mark) == (other.step, other.mark)


def _joined(answers: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(a["problem"] for a in answers if a["problem"])


def _chunk(raw: Mapping[str, Any]) -> Chunk:
    return Chunk(tuple(raw["offset"]), tuple(raw["size"]))


def _holding(raw: Mapping[str, Any]) -> Holding:
    return Holding(raw["step"], raw["mark"], tuple(raw["needed"]), tuple(raw["files"]))
