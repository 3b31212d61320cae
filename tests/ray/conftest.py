"""One embedded Ray of four CPUs for all tests here; every group ends with its test."""

import os
from collections.abc import Iterator

import pytest
import ray
from dummies import PYTHONPATH

from rayplane.runtime.ray import RayGroup, connect


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "PYTHONPATH")}
    os.environ["PYTHONPATH"] = PYTHONPATH
    with connect("local", num_cpus=4):
        yield
    os.environ.update({name: value for name, value in before.items() if value is not None})


@pytest.fixture
def group(cluster: None) -> Iterator[RayGroup]:
    group = RayGroup(wait_s=20.0)
    yield group
    group.close()
    assert not [p for p in ray.util.placement_group_table().values() if p["state"] not in ("REMOVED",)]
