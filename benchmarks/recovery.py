"""How soon a training job goes on after each kind of failure, beside Ray Train: python benchmarks/recovery.py [--json] [--rounds 3]

kind           what happens to a job of four ranks (dp2 pp2) on a simulated cluster of three nodes with two CPUs each
rank           SIGKILL of a rank: the others keep their processes
all ranks      SIGKILL of every rank, so that all of them are new: what a restart without recall in place takes
stopped        SIGSTOP of a rank: its owner calls it failed when it has stood still for 2 s
actor          SIGKILL of a stage actor
driver         SIGKILL of the command, which is run again at once; "detected" is when its last rank has ended by itself
node           a node with ranks is removed, and detected once it is named; a spare one is there, and a new one for the next round

detected       from the signal to the controller's event              next step   from the signal to the first step done by all
lost           steps that were done once more: there is a copy in memory every 2 steps, and a checkpoint every 20

Then a rank of two (dp2, a checkpoint every 5 steps, no copies in memory) is killed, and a worker of two of Ray Train's, each with a
checkpoint every 5 steps, max_failures -1, gloo; the ratio is of the medians. Ray Train's recovery includes what it does by default:
looking at its workers every 2 s, ending all of them, and starting them anew.

All figures are medians over rounds; JSON has those of every round too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recovery_cluster import Machines, lives, parent
from recovery_job import FAILURES, JobRun, Recovery
from systems import RunError

FOUR, TWO = "{dp: 2, pp: 2, micro_batch: 2}", "{dp: 2, micro_batch: 2}"
STEP_TIMEOUT_S = 60.0
EVERY = 5
"""Steps between checkpoints where Ray Train is beside it."""
NODE_GONE = ("RankLost",)
"""That connections to it are lost is heard before, but could mean anything."""
BETWEEN_STEPS = 25
WAIT_S = 180.0
PEER = Path(__file__).parent / "peers" / "ray_train_job.py"
TARGETS = {"detect_s": {"rank": 1.0, "actor": 1.0, "node": 3.0}, "next_step_s": {"rank": 15.0, "actor": 15.0, "node": 15.0}}


def kill_one(run: JobRun, machines: Machines) -> None:
    """The last rank."""
    os.kill(run.ranks()[-1], signal.SIGKILL)


def kill_all(run: JobRun, machines: Machines) -> None:
    """Every rank."""
    for pid in run.ranks():
        os.kill(pid, signal.SIGKILL)


def stop_one(run: JobRun, machines: Machines) -> None:
    """The last rank stands still."""
    os.kill(run.ranks()[-1], signal.SIGSTOP)


def kill_actor(run: JobRun, machines: Machines) -> None:
    """The owner of the last rank."""
    os.kill(parent(run.ranks()[-1]), signal.SIGKILL)


def lose_node(run: JobRun, machines: Machines) -> None:
    """One that holds ranks."""
    machines.lose(run.ranks())


KINDS: dict[str, Callable[[JobRun, Machines], None]] = {
    "rank": kill_one,
    "all ranks": kill_all,
    "actor": kill_actor,
    "node": lose_node,
    "stopped": stop_one,
}


def strike(run: JobRun, machines: Machines, how: Callable[[JobRun, Machines], None]) -> Recovery:
    """One failure of a job that trains, from its signal on."""
    run.until_steps(BETWEEN_STEPS)
    since_unix_s = time.time()
    how(run, machines)
    return run.recovery(since_unix_s, NODE_GONE if how is lose_node else FAILURES)


def lose_driver(run: JobRun) -> Recovery:
    """The command is killed, and run again."""
    run.until_steps(BETWEEN_STEPS)
    ranks, since_unix_s = run.ranks(), time.time()
    run.driver.kill()
    run.again()
    while any(map(lives, ranks)):
        time.sleep(0.01)
    ended_s = time.time() - since_unix_s
    found = run.recovery(since_unix_s)
    return Recovery(ended_s, found.next_step_s, found.lost_steps)


def four_ranks(machines: Machines, folder: Path, rounds: int) -> dict[str, list[Recovery]]:
    """Every kind of failure of one job, in turn."""
    found: dict[str, list[Recovery]] = {kind: [] for kind in [*KINDS, "driver"]}
    with JobRun(folder / "four", machines.address, FOUR, STEP_TIMEOUT_S, every=20, memory_every=2) as run:
        for _ in range(rounds):
            for kind, how in KINDS.items():
                found[kind].append(strike(run, machines, how))
                _tell(kind, found[kind][-1])
                if kind == "node":
                    machines.replace()
            found["driver"].append(lose_driver(run))
            _tell("driver", found["driver"][-1])
    return found


def two_ranks(machines: Machines, folder: Path, rounds: int) -> list[Recovery]:
    """A killed rank, as Ray Train's worker."""
    with JobRun(folder / "two", machines.address, TWO, STEP_TIMEOUT_S, every=EVERY) as run:
        found = [strike(run, machines, kill_one) for _ in range(rounds)]
    _tell("rayplane, a rank of two", found[-1])
    return found


class RayTrain:
    """Its job beside ours, on the same cluster."""

    def __init__(self, address: str, folder: Path):
        self._folder, self._steps = folder, folder / "steps.jsonl"
        folder.mkdir()
        with (folder / "said").open("w") as said:
            self._driver = subprocess.Popen([sys.executable, PEER, address, folder, str(EVERY)], stdout=said, stderr=said)

    def close(self) -> None:
        """Its workers end with its driver."""
        self._driver.kill()
        self._driver.wait(WAIT_S)

    def strike(self) -> Recovery:
        """Kill a worker while it trains; Ray Train does not say when it noticed, but its new workers have other process ids."""
        seen = len(self._told())
        self._until(lambda: len(self._told()) >= seen + 2 * BETWEEN_STEPS)
        newest = {line["rank"]: line["pid"] for line in self._told()}
        since_unix_s = time.time()
        os.kill(newest[1], signal.SIGKILL)

        def after() -> list[dict[str, Any]]:
            return [line for line in self._told() if line["unix_s"] > since_unix_s and line["pid"] not in newest.values()]

        self._until(lambda: {line["rank"] for line in after()} == {0, 1})
        first = min(line["step"] for line in after())
        done_s = max(line["unix_s"] for line in after() if line["step"] == first) - since_unix_s
        last = max(line["step"] for line in self._told() if line["pid"] in newest.values())
        found = Recovery(float("nan"), done_s, last - first + 1)
        _tell("Ray Train, a worker of two", found)
        return found

    def _told(self) -> list[dict[str, Any]]:
        text = self._steps.read_text() if self._steps.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s or self._driver.poll() is not None:
                raise RunError(f"Ray Train does not train: {(self._folder / 'said').read_text()[-2000:]}")
            time.sleep(0.05)


def summary(rounds: list[Recovery]) -> dict[str, Any]:
    """Medians, and every round."""
    each = [{k: v for k, v in asdict(r).items() if v == v} for r in rounds]
    return {**{key: statistics.median(r[key] for r in each) for key in each[0]}, "rounds": each}


def _tell(kind: str, found: Recovery) -> None:
    print(f"{kind}: {found}", file=sys.stderr, flush=True)


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """All figures."""
    with ExitStack() as closing:
        machines = Machines()
        closing.callback(machines.close)
        told: dict[str, Any] = {kind: summary(found) for kind, found in four_ranks(machines, folder, rounds).items()}
        told["rank of two"] = summary(two_ranks(machines, folder, rounds))
        peer = RayTrain(machines.address, folder / "peer")
        closing.callback(peer.close)
        told["ray train"] = summary([peer.strike() for _ in range(rounds)])
    told["ray_train_ratio"] = told["ray train"]["next_step_s"] / told["rank of two"]["next_step_s"]
    told["full_restart_ratio"] = told["all ranks"]["next_step_s"] / told["rank"]["next_step_s"]
    return told


def main() -> None:
    """Print the table; exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = measure(given.rounds, Path(folder))
    print(f"{'':<12} {'detected':>9} {'next step':>10} {'lost':>5}")
    for kind, found in told.items():
        if isinstance(found, dict):
            detected = f"{found['detect_s']:.2f} s" if "detect_s" in found else "-"
            print(f"{kind:<12} {detected:>9} {found['next_step_s']:>8.2f} s {found['lost_steps']:>5.0f}")
    print(f"Ray Train takes {told['ray_train_ratio']:.1f} times as long, a restart of all ranks {told['full_restart_ratio']:.1f} times")
    missed = [f"{kind}: {key}" for key, of in TARGETS.items() for kind, most_s in of.items() if told[kind][key] > most_s]
    print(f"targets missed: {', '.join(missed) or 'none'}")
    if given.json:
        print(json.dumps(told))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
