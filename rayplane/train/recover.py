"""From where a rank goes on: the newest state that all ranks can read, in the hosts' memory or on disk.

memory: step 15      at least as new as the disk's ─▶ load ─▶ all ranks could
disk:   step 10      newest first ─▶ load ─▶ some rank finds damage ─▶ renamed to step-00000010.corrupt, said ─▶ the one before
nothing              only where there never was a checkpoint
"""

from __future__ import annotations

from pathlib import Path

from rayplane.errors import CheckpointError, DamagedError
from rayplane.spec.manifest import complete, step_of
from rayplane.train.checkpoint import Store
from rayplane.train.memory import Memory
from rayplane.train.rank import TrainRank

CORRUPT = ".corrupt"


def recover(rank: TrainRank, checkpoints: Store, memory: Memory | None, resume: Path | None) -> list[str]:
    """Load the newest state; every rank calls it. What a user should know of it; CheckpointError when all of the disk's is damaged.

    `resume` is the newest complete checkpoint on disk. A rank whose progress is still at step 0 has found none.
    """
    said = _from_memory(rank, checkpoints, memory, resume) if memory else []
    if rank.progress.step:
        return said
    for folder in _candidates(checkpoints, resume):
        problem = _load(rank, checkpoints, folder)
        if not problem:
            return said
        said.append(_set_aside(checkpoints, folder, problem))
    if damaged := _told(checkpoints, [p.name for p in checkpoints.directory.glob(f"step-*{CORRUPT}*")]):
        raise CheckpointError(
            f"{checkpoints.directory} has no checkpoint left that is not damaged ({', '.join(sorted(damaged))}); "
            "mend one and give it its name back, or start over with --fresh, which keeps them aside"
        )
    return said


def _from_memory(rank: TrainRank, checkpoints: Store, memory: Memory, resume: Path | None) -> list[str]:
    """Load the copy in memory, if there is a whole one that is as new as the disk's; what is not used is removed."""
    found, having = memory.find(max(1, _step(resume) if resume else 1))
    if found is None:
        memory.keep(0)
        return []
    folder, problem = memory.bring(found, having, rank.optimizer.tensors())
    problem = problem or _load(rank, checkpoints, folder)
    memory.keep(0 if problem else found.step)
    return [f"the copy of step {found.step} in memory cannot be used: {problem}"] if problem else []


def _candidates(checkpoints: Store, resume: Path | None) -> list[Path]:
    """Complete checkpoints on disk, as the first rank sees them, newest first."""
    if resume is None:
        return []
    older = [str(p) for p in complete(checkpoints.directory) if _step(p) < _step(resume)]
    return [resume, *map(Path, reversed(_told(checkpoints, older)))]


def _load(rank: TrainRank, checkpoints: Store, folder: Path) -> str:
    """What is damaged, as all ranks know it; nothing where every rank has loaded its part."""
    progress, problem = rank.progress, ""
    try:
        progress = rank.load(checkpoints, folder)
    except DamagedError as error:
        problem = str(error).partition("; ")[0]  # what follows is for who reads a checkpoint by hand
    problems = [a["problem"] for a in checkpoints.gather({"problem": problem}) if a["problem"]]
    if not problems:
        rank.go_on(progress)
    return problems[0] if problems else ""


def _set_aside(checkpoints: Store, folder: Path, problem: str) -> str:
    """The first rank gives a damaged checkpoint a name that never counts; what to say about it."""
    names = [CORRUPT, *(f"{CORRUPT}-{n}" for n in range(2, 1000))]
    aside = next(p for p in (folder.with_name(folder.name + name) for name in names) if not p.exists())
    failed = ""
    if checkpoints.mesh.rank == 0:
        try:
            folder.rename(aside)
        except OSError as error:
            failed = str(error)
    answer = checkpoints.gather({"aside": aside.name, "failed": failed})[0]
    if answer["failed"]:
        remedy = "remove it to go on from an older checkpoint"
        raise CheckpointError(f"{problem}; {folder} cannot be renamed ({answer['failed']}): {remedy}")
    return f"{problem}; the folder is now called {answer['aside']}, and the checkpoint before it is used"


def _told(checkpoints: Store, names: list[str]) -> list[str]:
    """The first rank's answer, on every rank."""
    found: list[str] = checkpoints.gather({"names": names})[0]["names"]
    return found


def _step(folder: Path) -> int:
    return step_of(folder.name) or 0
