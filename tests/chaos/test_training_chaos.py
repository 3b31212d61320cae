"""A training job that is struck again and again has the losses of one to which nothing happens, and leaves nothing behind."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disturbances import restarts, terms
from dummies import PYTHONPATH, eventually
from evidence import Log, marked, new_mark, telling
from training_chaos import ChaosRun, TrainingChaos

HERE = Path(__file__).parent
LOCAL = ("--runtime", "local")
TERMS = terms()
MOST_S = 600 + 240 * TERMS.minutes
DISK_MB = 64
GONE_S = 20.0
KEPT = {".job.lock", ".job.ranks", "job"}
"""What lies in the folder of runs afterwards."""

pytestmark = pytest.mark.timeout(MOST_S)


class Undisturbed:
    """The same job, left alone; it goes on as far as it is asked for."""

    def __init__(self, folder: Path):
        self._folder, self._log = folder, Log(folder / "runs/job/events.jsonl")

    def losses(self, steps: int) -> dict[int, float]:
        """By step."""
        if self._done() < steps:
            with ChaosRun(self._folder, *LOCAL) as run:
                assert eventually(lambda: self._done() >= steps or run.driver.poll() is not None, MOST_S), run.said()
                run.driver.terminate()
                assert run.end() == 0, run.said()
        found = {e["step"]: e["loss"] for e in self._log.read() if e["event"] == "StepDone"}
        return {step: found[step] for step in range(1, steps + 1)}

    def _done(self) -> int:
        return max((e["step"] for e in self._log.read() if e["event"] == "StepDone"), default=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A folder that can be filled; gives whether it can."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        warnings.warn(f"no full disk in this run: {mounted.stderr.strip()}", stacklevel=1)
    try:
        yield mounted.returncode == 0
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", path], check=True)


def compare(done: dict[int, list[float]], steps: int, undisturbed: Undisturbed) -> None:
    """Every step was done, and had the same loss each time; the last ones may have been lost again before the end."""
    alone = undisturbed.losses(max(done))
    assert sorted(done) == sorted(alone) and steps in done and len(done) > 20
    for step, losses in done.items():
        assert losses == pytest.approx([alone[step]] * len(losses), rel=1e-5), f"step {step}"


def left_in(folder: Path) -> tuple[set[str], list[Path], list[Path]]:
    """(what lies beside the job's folder, checkpoints that are not whole, copies in memory)"""
    unfinished = [p for p in (folder / "runs/job").rglob("*step-*") if p.is_dir() and not (p / "manifest.json").is_file()]
    return {p.name for p in (folder / "runs").iterdir()}, unfinished, list((folder / "ram").iterdir())


def test_local_job_trains_on_as_if_nothing_had_happened(tmp_path: Path, undisturbed: Undisturbed) -> None:
    mark = new_mark()
    with small_disk(tmp_path / "runs") as fills:
        kinds = ("kill", "pause", "stop", "driver", *(["disk"] if fills else []))
        strikes = TERMS.script(kinds, short=5, share=0.3)
        chaos = TrainingChaos(tmp_path, lambda folder: ChaosRun(folder, *LOCAL, environment=mark))
        with telling(TERMS.seed, strikes, chaos.log):
            steps = chaos.play(strikes)
            assert eventually(lambda: not marked(mark), GONE_S), marked(mark)
            fewest, most = restarts(strikes)
            assert fewest <= chaos.restarts() <= most
            assert left_in(tmp_path) == (KEPT, [], [])
            compare({step: sorted(of) for step, of in chaos.losses().items()}, steps, undisturbed)


def test_job_on_a_cluster_trains_on_and_gives_every_place_back(tmp_path: Path, undisturbed: Undisturbed) -> None:
    environment = {**os.environ, **new_mark(), "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(HERE)])}
    environment.pop("RAY_ADDRESS", None)
    kinds = ("kill", "actor", "driver", *(["node"] if TERMS.minutes else []))
    strikes = TERMS.script(kinds, short=3, share=0.35)
    command = [sys.executable, str(HERE / "cluster_chaos.py"), str(tmp_path), str(TERMS.seed), str(len(strikes)), *kinds]
    print(f"CHAOS_SEED={TERMS.seed}: {[s.what for s in strikes]}")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MOST_S)
    assert ran.returncode == 0, ran.stderr[-6000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    fewest, most = restarts(strikes)
    assert fewest <= told["restarts"] <= most, told
    assert (told["places"], told["busy"]) == ([], 0.0), "after the job"
    assert eventually(lambda: not marked(environment), GONE_S), marked(environment)
    assert left_in(tmp_path) == (KEPT, [], [])
    compare({int(step): losses for step, losses in told["losses"].items()}, told["steps"], undisturbed)
