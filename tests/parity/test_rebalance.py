"""Real ranks of which some are slow: layers move away from them, and no loss shows it."""

import statistics
import time
from dataclasses import asdict

import numpy as np
import pytest
from dummies import PYTHONPATH

from rayplane.control import mover as mover_module
from rayplane.control.event import BetterPlan, StepDone
from rayplane.control.leeway import Leeway
from rayplane.control.loop import Controller
from rayplane.control.mover import Mover
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.plan.machine.catalog import homogeneous
from rayplane.runtime.group import Launch
from rayplane.runtime.local import LocalGroup
from rayplane.spec.job import TrainJob
from rayplane.spec.load import load_model

LAYERS, MICROBATCHES = 8, 4
SLOW_S = (0.003, 0.009)
AFTER = 16
CLUSTER = homogeneous({"here": 2}, "cpu", 2**32, {})


class Until:
    """Stops the job so many steps after its only move."""

    def __init__(self, stop, steps):
        self.stop, self.steps = stop, steps
        self.moved_s, self.wall_s, self.began_s = 0.0, [], time.monotonic()
        self.moves, self.before_s, self.back_s = [], [], 0.0

    def on_event(self, state, event):
        if isinstance(event, BetterPlan):
            self.moves.append(event)
            self.moved_s, self.before_s, self.wall_s = time.monotonic(), self.wall_s, []
        if isinstance(event, StepDone) and self.moves and not self.back_s and state.progress.attempt > 1:
            self.back_s = time.monotonic()
        if self.moves and len(self.wall_s) == self.steps and isinstance(event, StepDone):
            self.stop.request()

    def on_step(self, reports):
        self.wall_s.append(max(r.wall_s for r in reports))


def job(directory, steps):
    model = {"layers": LAYERS, "hidden": 32, "heads": 4, "kv_heads": 2, "mlp": 64, "vocab": 61, "max_seq": 64, "init_std": 0.1}
    data = {"path": [str(directory.parent / "tokens.npy")], "seq_len": 16}
    optimizer = {"lr": 3e-3, "schedule": "constant", "clip": 1.0, "eps": 1e-5}
    train = {
        "data": data,
        "steps": steps,
        "global_batch": 8,
        "optimizer": optimizer,
        "checkpoint": {"dir": str(directory), "every": 10**6},
    }
    layout = {"pp": 2, "micro_batch": 8 // MICROBATCHES}
    return TrainJob.model_validate({"name": directory.name, "model": model, "train": train, "layout": layout}, strict=False)


def train(directory, entry, steps, watch=None, stop=None):
    """The result of a job on two ranks of this machine, and the mover's arrangement in the end."""
    of = job(directory, steps)
    leeway = Leeway.of(of, load_model(of.model))
    chosen = leeway.plan(CLUSTER)
    config = {"job": of.model_dump(mode="json"), "layout": asdict(chosen.layout), "resume": "", "attempt": 1, "memory": None}
    launch = Launch(directory.name, chosen.layout, chosen.placement, entry, config, directory=str(directory.parent))
    mover = Mover(leeway, steps, lambda: CLUSTER, steady_s=1.0)
    observers = (mover, watch) if watch else ()
    controller = Controller(Task(directory, steps, of.limits, launch), LocalGroup(), observers, (mover,) if watch else ())
    return controller.run(stop or Stop()), controller.state.progress.arrangement.layout


def pipe_s(boundaries):
    """A step of 1f1b with nothing but the slow layers' sleep."""
    stages = [layers * seconds for layers, seconds in zip(boundaries, SLOW_S, strict=True)]
    return MICROBATCHES * max(stages) + min(stages)


def test_a_slow_stage_gives_layers_away_until_its_step_is_within_10_percent_of_the_best(tmp_path, monkeypatch):
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, 61, 4000).astype(np.uint16))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("SLOW_LAYERS", " ".join(map(str, SLOW_S)))
    monkeypatch.setattr(mover_module, "ASK_EVERY_S", 0.5)
    stop = Stop()
    watch = Until(stop, AFTER)
    result, layout = train(tmp_path / "slow", "slow_worker", 10**5, watch, stop)
    assert result.state == "drained" and result.restarts == 0 and len(watch.moves) == 1
    best_s = min(pipe_s((n, LAYERS - n)) for n in range(1, LAYERS))
    before_s, after_s = (statistics.quantiles(of)[0] for of in (watch.before_s, watch.wall_s))
    print(
        f"{layout}: {before_s * 1e3:.0f} ms a step before, {after_s * 1e3:.0f} ms after, {best_s * 1e3:.0f} ms at best; "
        f"moved {watch.moved_s - watch.began_s:.1f} s after the start, the next step {watch.back_s - watch.moved_s:.1f} s after that"
    )
    assert pipe_s(layout.boundaries) <= 1.1 * best_s
    assert after_s < 0.8 * before_s
    undisturbed, _ = train(tmp_path / "fast", "rayplane.train.worker", result.step)
    assert sorted(result.losses) == sorted(undisturbed.losses)
    assert result.losses == pytest.approx(undisturbed.losses, rel=1e-5)
