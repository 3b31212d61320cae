"""`rayplane run` of a job that trains: it becomes a trained model.

load ──▶ lock the folder ──▶ find the cluster ──▶ plan ──▶ Controller ──▶ table, result
            └─▶ finished, or another model's
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from rayplane.cli.bound import Repriced
from rayplane.cli.devices import Devices
from rayplane.cli.fleet import Fleet, Options, Runtime, open_fleet
from rayplane.cli.folder import finished_result, keep_result, refuse_others, set_aside
from rayplane.cli.metrics import Metrics, Targets
from rayplane.cli.observed import newest as newest_window
from rayplane.cli.order_plan import JobPlanner
from rayplane.cli.profiles import profiled
from rayplane.cli.progress import progress
from rayplane.cli.replanner import ClusterReplanner
from rayplane.cli.report import nothing_done, result_object, show_result
from rayplane.cli.screen import say, screen, warnings_on
from rayplane.cli.signals import stop_on_signals
from rayplane.cli.words import count
from rayplane.control.checkpoints import newest
from rayplane.control.journal import loss_of
from rayplane.control.leeway import Leeway
from rayplane.control.lock import lock_path, locked
from rayplane.control.loop import Controller
from rayplane.control.mailbox import Mailbox
from rayplane.control.mover import Mover
from rayplane.control.orders import Orders
from rayplane.control.result import Result
from rayplane.control.slow_watch import SlowWatch
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.control.tenure import tenure
from rayplane.plan.choice.report import report
from rayplane.plan.step.profile import in_words
from rayplane.runtime.group import Launch
from rayplane.runtime.patience import GaveUp
from rayplane.spec.job import TrainJob
from rayplane.spec.load import load_model
from rayplane.spec.manifest import model_numbers
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Plan, Workload
from rayplane.spec.source import pinned
from rayplane.train.ram_folder import memory_folder, remove_folder

ENTRY = "rayplane.train.worker"
SCRAPE_S = 15.0
"""The usual distance of what a Prometheus knows."""
PROMETHEUS_WINDOW_S = 4 * SCRAPE_S
UNPACKED = "working_dir_files"
"""The folder in which Ray unpacks what was submitted with --working-dir."""


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for. Relative paths in a job are relative to where the command runs."""

    job: TrainJob
    model: ModelSpec
    directory: Path
    runtime: Runtime
    profile: str


def train(job: TrainJob, options: Options, console: Console) -> tuple[dict[str, Any], int]:
    """The final object and the exit code."""
    job = job.model_copy(update={"model": pinned(job.model)})
    order = Order(job, load_model(job.model), _directory(job), options.runtime, options.profile)
    final, exit_code = _run(order, options.fresh, console)
    show_result(console, final)
    return final, exit_code


def _run(order: Order, fresh: bool, console: Console) -> tuple[dict[str, Any], int]:
    """The final object and the exit code; a finished job is not run again."""
    name, steps = order.job.name, order.job.train.steps
    with locked(order.directory):
        if fresh and (aside := set_aside(order.directory)):
            say(console, f"the earlier run is kept in {aside}")
        refuse_others(order.directory, name, order.model)
        if known := finished_result(order.directory, steps):
            say(console, f"{name} is finished: all of its {steps} steps are done; --fresh starts over")
            return known, 0
        try:
            with tenure(order.directory, order.job.limits) as died:
                if died:
                    say(console, f"runs in a row whose driver died without an end: {died}")
                return _train(order, console)
        except GaveUp:
            say(console, f"{name} stopped before it was started")
            found = newest(order.directory)
            return nothing_done(name, found, loss_of(order.directory, found.step)), 0


def _train(order: Order, console: Console) -> tuple[dict[str, Any], int]:
    """Run the job to its end; the final object and the exit code."""
    job, stop, mailbox = order.job, Stop(), Mailbox(order.directory)
    mailbox.open()
    with stop_on_signals(stop), warnings_on(console), open_fleet(order.runtime, job) as fleet:
        cluster = profiled(fleet.cluster, order.profile, found=True)
        leeway, devices = Leeway.of(job, order.model), Devices(cluster, fleet.supply, job.train.precision)
        chosen = leeway.plan(cluster)
        _introduce(order, chosen, console)
        watches, replanner = _watches(job, leeway, devices), ClusterReplanner(leeway, devices, partial(say, console))
        followers = (replanner.follow, *(watch.follow for watch in watches if isinstance(watch, Mover)))
        planner = JobPlanner(leeway, devices.now, followers)
        with progress(console, job.train.steps) as shown, Orders(mailbox, planner) as orders:
            metrics = Metrics(fleet.exporter, chosen.estimate.step_s)
            observers = (shown, metrics, Targets(order.directory, fleet.targets, console), orders, *watches)
            moved = Repriced(order.model, Workload.of(job.train), cluster, fleet.exporter.set_predicted, partial(say, console))
            task = _task(order, chosen, fleet)
            controller = Controller(task, fleet.new_group(moved), observers, (orders, *watches), replanner)
            result = controller.run(stop)
        if result.state == "failed" and (memory := task.launch.config["memory"]):
            fleet.everywhere(partial(remove_folder, Path(memory["folder"])))
    final = result_object(job.name, controller.state.progress.arrangement.layout, result)
    if result.state == "finished":
        with suppress(OSError):  # where the disk is full, who asks again gets a run that has nothing left to do
            keep_result(order.directory, final)
    _conclude(order, result, console)
    return final, result.exit_code


def _watches(job: TrainJob, leeway: Leeway, devices: Devices) -> tuple[SlowWatch | Mover, ...]:
    """Who looks on at the steps, and brings events of what it sees."""
    slow = SlowWatch(job.train.global_batch, job.limits.straggler_factor, devices.spare)
    if not job.limits.replan:
        return (slow,)
    if not (url := job.metrics.prometheus):
        return slow, Mover(leeway, job.train.steps, devices.now)
    see = partial(newest_window, url, job.name, PROMETHEUS_WINDOW_S)
    return slow, Mover(leeway, job.train.steps, devices.now, see, PROMETHEUS_WINDOW_S + SCRAPE_S)


def _task(order: Order, chosen: Plan, fleet: Fleet) -> Task:
    job = order.job.model_dump(mode="json")
    job["train"]["checkpoint"]["dir"] = str(order.directory)
    config = {"job": job, "layout": asdict(chosen.layout), "resume": "", "attempt": 1, "memory": _memory(order)}
    places = (fleet.device, str(order.directory / "logs"), str(Path.cwd()))
    launch = Launch(order.job.name, chosen.layout, chosen.placement, ENTRY, config, *places)
    steps, limits, expected_s = order.job.train.steps, order.job.limits, chosen.estimate.step_s
    return Task(order.directory, steps, limits, launch, model_numbers(order.model), step_s=expected_s)


def _memory(order: Order) -> dict[str, str] | None:
    """Where ranks keep copies of the job's state, if they are to, and the lock that tells whether the job is driven."""
    section = order.job.train.checkpoint
    if section.memory_every is None:
        return None
    folder = memory_folder(order.directory, Path(section.memory_dir))
    return {"folder": str(folder), "lock": str(lock_path(order.directory))}


def _introduce(order: Order, chosen: Plan, console: Console) -> None:
    job, model = order.job, order.model
    say(console, f"{job.name}: {model.name}, {count(model.num_params)} parameters, {job.train.steps} steps")
    told = report(chosen)
    say(console, ", ".join(f"{name} {value}" for name, value in zip(told.headers, told.ranked[0], strict=True)))
    for text in (f"why: {told.why}", *(f"note: {note}" for note in told.notes)):
        say(console, text)
    if chosen.cluster.profile:
        say(console, f"figures {in_words(chosen.cluster, job.train.precision)}")
    if UNPACKED in order.directory.parts:
        say(console, "note: train.checkpoint.dir lies where Ray unpacked this job, and may go with it: make it an absolute path")
    checkpoint = newest(order.directory)
    if checkpoint.path:
        say(console, f"resuming from {checkpoint.path}: {checkpoint.step} of {job.train.steps} steps are done")


def _conclude(order: Order, result: Result, console: Console) -> None:
    again = "run it again to go on from there" if result.checkpoint else "no checkpoint was saved"
    kept = f"the newest checkpoint has {newest(order.directory).step} steps, {again}" if result.checkpoint else again
    if result.state == "drained":
        say(console, f"{order.job.name} stopped after step {result.step}: {kept}")
    if result.state == "failed":
        kept = kept.replace("run it again", "once that is mended, run it again")
        say(screen(stderr=True), f"{order.job.name} failed after step {result.step}: {result.message}\n{kept}")


def _directory(job: TrainJob) -> Path:
    return Path(job.train.checkpoint.dir).expanduser().absolute()
