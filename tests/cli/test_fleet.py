"""The cluster that a job describes, beside the one that is found."""

import logging

import pytest

from rayplane.cli.fleet import _as_described
from rayplane.errors import SpecError
from rayplane.runtime.hardware.machines import ISLAND_LABEL, Machine, as_cluster
from rayplane.spec.load import load_job

TWO_JOINED = "cluster: {nodes: [{name: a, count: 2, device: h100-sxm, devices: 4, island: nvl}]}"


@pytest.fixture
def described(job):
    return load_job(job(**{"limits: {restarts: 1}": f"limits: {{restarts: 1}}\n{TWO_JOINED}"}))


def test_islands_that_differ_are_named_and_those_found_are_used(described, caplog):
    apart = as_cluster([Machine("a-0", 4, "h100-sxm"), Machine("a-1", 4, "h100-sxm")])
    with caplog.at_level(logging.WARNING, "rayplane"):
        assert list(_as_described(described, apart).islands) == ["a-0", "a-1"]
    assert "cluster: describes 1 island of 8, but found were 2 islands of 4; those that were found are used" in caplog.text


def test_islands_that_agree_are_no_matter(described, caplog):
    joined = as_cluster([Machine(f"a-{i}", 4, "h100-sxm", labels={ISLAND_LABEL: "x"}) for i in range(2)])
    assert list(_as_described(described, joined).islands) == ["x"]
    assert not caplog.text


def test_a_machine_of_several_islands_is_still_one_machine(described):
    nodes = as_cluster([Machine("a-0", 4, "h100-sxm"), Machine("a-1", 3, "h100-sxm")])
    with pytest.raises(SpecError, match="describes 2 x 4 h100-sxm, but this cluster has 1 x 3 h100-sxm, 1 x 4 h100-sxm"):
        _as_described(described, nodes)


@pytest.mark.parametrize("line", ["limits: {fallback: near}", "limits: {priority: high}"])
def test_limits_of_placement_are_checked(job, line):
    with pytest.raises(SpecError, match=r"limits\.(fallback|priority)"):
        load_job(job(**{"limits: {restarts: 1}": line}))


def test_limits_of_placement_have_defaults_and_are_read(job):
    assert (load_job(job()).limits.fallback, load_job(job()).limits.priority) == ("island", 0)
    limits = load_job(job(**{"limits: {restarts: 1}": "limits: {fallback: rack, priority: -3}"})).limits
    assert (limits.fallback, limits.priority) == ("rack", -3)
