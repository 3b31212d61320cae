"""A service in memory: groups whose replicas serve at once and whose ingress reports what a test says, and a controller on a thread."""

from __future__ import annotations

import queue
import threading
from functools import partial

from dummies import eventually

from rayplane.control.autoscale import Limits
from rayplane.control.berths import Berth
from rayplane.control.service_loop import ServiceController
from rayplane.control.service_status import read_service
from rayplane.control.service_task import Ground, ServiceTask
from rayplane.control.stop import Stop
from rayplane.control.way import Ability, Way
from rayplane.runtime.group import Launch, RankMessage
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

TRAFFIC = {"requests_s": 1.0, "prompt_tokens_s": 10.0, "cached_tokens_s": 0.0, "output_tokens_s": 10.0, "refused_s": 0.0}
TRAFFIC |= {"ttft_p99_s": 0.1, "itl_p99_s": 0.01, "queue_p99_s": 0.0, "running": 1, "unplaced": 0}


class FakeMember:
    """A WorkerGroup of one rank."""

    def __init__(self, world):
        self.world, self.inbox, self.launch, self.sent = world, queue.SimpleQueue(), None, []
        self.closed = False

    @property
    def name(self):
        return self.launch.name.rpartition("/")[2]

    def start(self, launch, give_up):
        self.launch = launch
        if launch.entry == "replica" and self.world.refuse:
            raise self.world.refuse
        self.world.groups.append(self)
        if self.world.sick(launch):
            self.say(type="failed", kind="user", message="no such kernel")
        elif not self.world.silent:
            self.say(type="started", step=0)
            self.say(type="serving", address="127.0.0.1:80" if launch.entry == "ingress" else f"at-{self.name}")

    def say(self, **message):
        self.inbox.put(message)

    def poll(self, timeout_s):
        try:
            return [RankMessage(0, self.inbox.get(timeout=min(timeout_s, 0.01)))]
        except queue.Empty:
            if self.launch.entry == "ingress" and self.world.traffic is not None:
                return [RankMessage(0, {"type": "traffic", **TRAFFIC, "replicas": {}, **self.world.traffic})]
            return []

    def send(self, message):
        self.sent.append(message)
        if message["type"] == "drain" and self.world.drains:
            self.say(type="done", drained=True)

    def kill(self):
        pass

    def close(self):
        self.closed = True


def place(way, free):
    """The first devices that are free, wherever they are."""
    devices = tuple(sorted(free))[: way.devices]
    return Berth(Placement((Slot(0, 0, 0, (0,), "", ""),)), devices) if len(devices) == way.devices else None


class World:
    """What the groups do, and the controller on them. `traffic`: changes to TRAFFIC; None: the ingress says nothing of it."""

    def __init__(self, directory, replicas=1, least=1, most=2, berths=2, restarts=2, holds=lambda n, load: True, **task):
        self.groups, self.traffic, self.drains, self.silent, self.refuse = [], {}, True, False, None
        self.sick = lambda launch: False
        launch = partial(Launch, "svc", Layout(), Placement(()), log_dir=str(directory / "logs"))
        self.task = ServiceTask(
            name="svc",
            directory=directory,
            replica=launch(entry="replica", config={}),
            ingress=launch(entry="ingress", config={"port": 0}),
            way=Way(),
            replicas=replicas,
            devices=berths,
            place=place,
            ability=lambda way: Ability(Limits(least, min(most, berths // way.devices), 0.5, 0.05), holds),
            restarts=restarts,
            drain_s=5.0,
            model="m",
            **task,
        )
        self.stop, self.result, self.error = Stop(), None, None
        ground = Ground(lambda: FakeMember(self), lambda: ("",))
        self.controller = ServiceController(self.task, ground)
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        while self.thread.is_alive():
            self.stop.request()
            self.thread.join(1)
        assert all(group.closed for group in self.groups)

    def _run(self):
        try:
            self.result = self.controller.run(self.stop)
        except Exception as error:
            self.error = error

    @property
    def status(self):
        return read_service(self.task.directory)

    def phases(self):
        return {r.id: r.phase for r in self.status.replicas} if self.status else {}

    def until(self, condition, timeout_s=10):
        assert eventually(condition, timeout_s), (self.status, self.error)

    def member(self, name):
        """The newest group of that name."""
        return next(g for g in reversed(self.groups) if g.name == name)

    def routes(self):
        """What the newest ingress was told last."""
        ingress = self.member("ingress")
        told = [m["replicas"] for m in ingress.sent if m["type"] == "replicas"] or [ingress.launch.config["replicas"]]
        return [replica["id"] for replica in told[-1]]

    def end(self):
        self.thread.join(20)
        assert self.result, self.error
        return self.result
