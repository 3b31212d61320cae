"""`rayplane nodes`: a survey as a picture and as JSON, and this machine without Ray."""

import json
import os

import pytest
from topo_samples import A100_PAIRS

from rayplane.cli.nodes import as_object, drawn
from rayplane.cli.screen import screen
from rayplane.runtime.hardware.gpu import Gpu
from rayplane.runtime.hardware.host import assemble
from rayplane.runtime.hardware.machines import ISLAND_LABEL, RACK_LABEL, Machine
from rayplane.runtime.hardware.topo import parse
from rayplane.runtime.ray.queue import Ticket
from rayplane.runtime.ray.survey import NodeState, Survey

GB = 10**9
PAIRS = assemble(64, 10**12, [Gpu(i, "NVIDIA A100-PCIE-40GB", f"GPU-{i}", 40 * GB) for i in range(4)], parse(A100_PAIRS))
LABELS = {ISLAND_LABEL: "nvl", RACK_LABEL: "r1"}
CLUSTER = Survey(
    "GPU",
    (
        NodeState(Machine("head", 0, "cpu"), "10.0.0.1", 0),
        NodeState(Machine("gpu-10", 4, "b200", labels=LABELS), "10.0.0.12", 4),
        NodeState(Machine("gpu-2", 4, "b200", labels=LABELS), "10.0.0.4", 1, {"demo": 2, "other": 1}),
        NodeState(Machine("pairs", 4, "a100-40gb", 40 * GB, hardware=PAIRS), "10.0.0.9", 2, {"[b]old": 2}),
        NodeState(Machine("strange", 2, ""), "10.0.0.10", 2),
    ),
    (Ticket("big", 5, 1, "GPU", "2 x 8 GPU, each in one island", "k"),),
    ("node strange says nothing of its GPUs",),
)


def test_the_picture_has_racks_islands_nodes_jobs_and_who_waits():
    assert list(drawn(CLUSTER, screen())) == [
        "5 nodes, 14 GPU, 9 free",
        "├── head: no devices",
        "│   └── head  10.0.0.1",
        "├── island pairs/0: 2 x a100-40gb of 40 GB",
        "│   └── pairs  10.0.0.9  ■■□□ 2 of 4 free  [b]old: 2  NICs mlx5_0",
        "├── island pairs/2: 2 x a100-40gb of 40 GB",
        "│   └── pairs  10.0.0.9  ■■□□ 2 of 4 free  [b]old: 2  NICs mlx5_0",
        "├── rack r1",
        "│   └── island nvl: 8 x b200 of 180 GB",
        "│       ├── gpu-2  10.0.0.4  ■■■□ 1 of 4 free  demo: 2  other: 1",
        "│       └── gpu-10  10.0.0.12  □□□□ 4 of 4 free",
        "└── island strange: 2 x unknown",
        "    └── strange  10.0.0.10  □□ 2 of 2 free",
        "waiting 1: big, priority 5, needs 2 x 8 GPU, each in one island",
        "note: node strange says nothing of its GPUs",
    ]


def test_the_object_has_every_device_with_its_cards():
    told = as_object(CLUSTER)
    assert (told["devices"], told["free"], told["waiting"][0]["job"]) == (14, 9, "big")
    pairs = next(node for node in told["nodes"] if node["name"] == "pairs")
    assert pairs["islands"] == [{"name": "pairs/0", "devices": 2}, {"name": "pairs/2", "devices": 2}]
    assert [(gpu["uuid"], gpu["nics"]) for gpu in pairs["gpus"]][:2] == [("GPU-0", ["mlx5_0"]), ("GPU-1", ["mlx5_0"])]
    assert next(node for node in told["nodes"] if node["name"] == "gpu-2")["rack"] == "r1"


def test_this_machine_is_shown_without_ray(cli, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    result = cli("nodes", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    cores = len(os.sched_getaffinity(0))
    assert (told["resource"], told["devices"], told["free"]) == ("CPU", cores, cores)
    assert f"1 node, {cores} CPU, {cores} free" in cli("nodes").stdout


@pytest.mark.parametrize("devices", [17, 128])
def test_many_devices_of_a_node_are_counted_and_not_drawn(devices):
    lines = list(drawn(Survey("CPU", (NodeState(Machine("n", devices, "cpu", GB), "", devices),)), screen()))
    assert lines[-1] == f"    └── n  {devices} of {devices} free"
