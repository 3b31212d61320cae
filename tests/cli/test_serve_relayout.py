"""A service of real ranks is cut otherwise while streams run: one device becomes a pipe of two, and no text changes."""

import threading
import time
from functools import partial

import pytest
from dummies import eventually, runs
from serving_job import LAYERS, play, save_model

from rayplane.cli.serve_task import ServeOrder, serve_task
from rayplane.control.service_loop import ServiceController
from rayplane.control.service_state import LayoutWanted
from rayplane.control.service_status import read_service
from rayplane.control.service_task import Ground
from rayplane.control.stop import Stop
from rayplane.control.way import Way
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.serving.serving import plan_of
from rayplane.runtime.local import LocalGroup
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_model

PROMPTS = [f"stream {i}: " + "abc" * (i % 3) for i in range(8)]
TOKENS = 300
ALONE, PIPE = Way(Layout(boundaries=(LAYERS,))), Way(Layout(pp=2, boundaries=(LAYERS - 1, 1)))
START_S = 150.0


class Run:
    """A service on three devices, driven by a thread."""

    def __init__(self, path, **serve):
        save_model(path / "model")
        serve = {
            "port": 0,
            "tokenizer": "bytes",
            "max_context": 512,
            "batch": {"max_sequences": 16, "max_tokens": 128},
            "slo": {"ttft_ms": 60000, "tpot_ms": 60000},
            "load": {"requests_s": 0.01, "prompt_tokens": 16, "output_tokens": 16},
            **serve,
        }
        job = ServeJob.model_validate({"name": "svc", "model": {"path": str(path / "model"), "dtype": "fp32"}, "serve": serve})
        self.folder, self.groups, self.stop, self.result = path / "runs/svc", [], Stop(), None
        self.folder.mkdir(parents=True)
        model, cluster = load_model(job.model), homogeneous({"": 3}, "cpu", 2**32, {})
        task = serve_task(ServeOrder(job, model, self.folder), plan_of(job, model, cluster), cluster, "cpu")
        assert (task.way, task.replicas) == (ALONE, 1)
        self.controller = ServiceController(task, Ground(self._group, lambda: ("",)))
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        while self.thread.is_alive():
            self.stop.request()
            self.thread.join(20)
        assert self.ranks and not any(map(runs, self.ranks))

    def _run(self):
        self.result = self.controller.run(self.stop)

    def _group(self):
        self.groups.append(LocalGroup())
        return self.groups[-1]

    @property
    def ranks(self):
        return [pid for group in self.groups for pid in group.pids.values()]

    @property
    def status(self):
        return read_service(self.folder)

    def serves(self, layout):
        """Whether one replica of that layout is live, and no other is there."""
        status = self.status
        found = [(r.layout, r.phase, r.health) for r in status.replicas] if status and status.urls else []
        return found == [(layout, "serving", "live")]


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as run:
        assert eventually(lambda: run.serves("1 device"), START_S), run.status
        yield run


def test_streams_run_through_a_move_from_one_device_to_a_pipe_of_two(run):
    url = run.status.urls[0]
    undisturbed = play(url, PROMPTS, TOKENS).texts
    assert all(len(text) == TOKENS for text in undisturbed)
    wish, ends_s = partial(run.controller.post, LayoutWanted(PIPE, 1)), time.monotonic() + START_S
    while run.status.moves < 1:  # streams are there all the time: as one round ends, the next begins
        assert play(url, PROMPTS, TOKENS, len(PROMPTS), wish).texts == undisturbed
        wish = None
        assert run.status.moves_given_up == 0 and time.monotonic() < ends_s, run.status
    assert eventually(lambda: run.serves("pp2 2+1"), 60), run.status
    assert play(url, PROMPTS, TOKENS).texts == undisturbed
    assert (run.status.moves, run.status.moves_given_up, run.status.restarts) == (1, 0, 0)
    run.stop.request()
    run.thread.join(60)
    assert (run.result.state, run.result.layout.pp) == ("drained", 2)
    assert {(s.replica, s.stage) for s in run.result.stages} == {(0, 0), (1, 0), (1, 1)}
