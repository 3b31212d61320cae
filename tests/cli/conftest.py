"""A fake fleet for the command line."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rayplane.cli import training as training_module
from rayplane.cli.fleet import Fleet
from rayplane.plan.machine.catalog import homogeneous


class Deaf:
    """An exporter that nobody asks."""

    def set_state(self, name):
        pass

    def set_predicted(self, step_s):
        pass

    def saved(self):
        pass

    def restarted(self):
        pass


@pytest.fixture(autouse=True)
def no_profile(monkeypatch, tmp_path_factory):
    """What was measured of this machine must not change what tests see."""
    monkeypatch.setattr("rayplane.cli.profiles.CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fleet(monkeypatch):
    """Lets `rayplane run` meet a scripted group on a cluster of two CPU cores."""

    def use(group):
        @contextmanager
        def opened(runtime, job):
            yield Fleet(homogeneous({"here": 2}, "cpu", 2**32, {}), "cpu", lambda *told: group, Deaf(), lambda: ["here:1"])

        monkeypatch.setattr(training_module, "open_fleet", opened)
        return group

    return use
