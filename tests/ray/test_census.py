"""The devices of a cluster as of now."""

import ray
from dummies import eventually
from ray.util.placement_group import placement_group, remove_placement_group

from rayplane.runtime.ray import Census, discover
from rayplane.runtime.ray.cluster import living_nodes, takes_connections


def test_the_census_finds_what_discovery_finds_and_who_answers(cluster: None) -> None:
    census, found = Census(None), discover()
    assert census.cluster().nodes == found.nodes == census.cluster().nodes
    (name,) = {node.name for node in found.nodes}
    assert census.answering({name, "gone"}) == {name}


def test_devices_that_others_hold_are_not_free(cluster: None) -> None:
    census = Census(None)
    held = placement_group([{"CPU": 3}], name="other")
    assert held.wait(10)
    try:
        assert eventually(lambda: census.free() == int(ray.cluster_resources()["CPU"]) - 3, 10.0)
    finally:
        remove_placement_group(held)


def test_a_node_whose_raylet_is_gone_takes_no_connection(cluster: None) -> None:
    (node,) = living_nodes()
    assert takes_connections(node)
    assert not takes_connections({**node, "NodeManagerPort": 9})
