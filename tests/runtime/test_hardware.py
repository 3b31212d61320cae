"""Machines as their drivers describe them, and the cluster that they make."""

import sys
from types import SimpleNamespace

import pytest
import topo_samples as samples

from rayplane.errors import PlacementError
from rayplane.plan.machine.catalog import device
from rayplane.runtime.hardware import nvml
from rayplane.runtime.hardware.gpu import MIB, Gpu, from_nvml, from_smi
from rayplane.runtime.hardware.host import Hardware, assemble, visible
from rayplane.runtime.hardware.machines import ISLAND_LABEL, RACK_LABEL, Machine, as_cluster, doubts
from rayplane.runtime.hardware.topo import parse

GB = 10**9
RACK, NONE = bytes(range(16)), bytes(16)
MIG_AND_PLAIN = """0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 1024, Enabled
1, GPU-bb, NVIDIA H100 80GB HBM3, 81559, 3, Disabled
2, GPU-cc, NVIDIA L40S, 46068, [N/A], [N/A]
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."""


def hardware(count: int, text: str = "", fabric: str = "", **gpu: object) -> Hardware:
    gpus = [Gpu(i, "NVIDIA H100 80GB HBM3", fabric=fabric, **gpu) for i in range(count)]
    return assemble(64, 10**12, gpus, parse(text))


@pytest.mark.parametrize(
    ("answer", "domain"),
    [
        ((RACK, 0, 7, 3), f"{RACK.hex()}.7"),
        ((RACK, 0, 7, 2), ""),
        ((RACK, 999, 7, 3), ""),
        ((NONE, 0, 0, 3), ""),
        (None, ""),
    ],
    ids=["completed", "in progress", "failed", "NVSwitch of one host", "not supported"],
)
def test_a_fabric_is_named_only_where_it_is_up_and_beyond_the_host(answer, domain):
    record = {"index": 0, "name": b"NVIDIA GB200", "uuid": "GPU-1", "memory": (189 * GB, GB), "mig": (0, 0), "fabric": answer}
    assert from_nvml(record) == Gpu(0, "NVIDIA GB200", "GPU-1", 189 * GB, GB, domain)


def test_what_a_device_cannot_answer_is_left_empty():
    assert from_nvml({"index": 3, "name": None, "uuid": None, "memory": None, "mig": None, "fabric": None}) == Gpu(3, "")


def test_rows_of_the_driver_are_read_and_its_errors_are_not():
    mig, plain, l40s = from_smi(MIG_AND_PLAIN)
    assert (mig.mig, plain.mig, l40s.mig) == (True, False, False)
    assert (plain.memory_bytes, plain.used_bytes, l40s.used_bytes) == (81559 * MIB, 3 * MIB, 0)
    assert (l40s.index, l40s.name, l40s.uuid) == (2, "NVIDIA L40S", "GPU-cc")


def test_nvml_is_asked_device_by_device_and_may_refuse(monkeypatch):
    class NVMLError(Exception):
        pass

    def refuse(handle):
        raise NVMLError

    def fabric(handle, into):
        info = into._obj
        info.clusterUuid[:] = RACK
        info.status, info.cliqueId, info.state = 0, 4, 3

    from ctypes import Structure, c_ubyte, c_uint

    class Info(Structure):
        _fields_ = (("clusterUuid", c_ubyte * 16), ("status", c_uint), ("cliqueId", c_uint), ("state", c_uint))

    ended: list[int] = []
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append(1),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA GB200",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=189 * GB, used=2 * GB),
        nvmlDeviceGetMigMode=refuse,
        nvmlDeviceGetGpuFabricInfo=fabric,
        c_nvmlGpuFabricInfo_t=Info,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(nvml, "find_spec", lambda name: fake)
    assert nvml.read() == tuple(Gpu(i, "NVIDIA GB200", f"GPU-{i}", 189 * GB, 2 * GB, f"{RACK.hex()}.4") for i in range(2))
    assert ended == [1]
    fake.nvmlInit = lambda: refuse(0)
    assert nvml.read() == ()


def test_only_listed_devices_are_seen_by_number_or_uuid():
    whole = assemble(8, GB, [Gpu(i, "x", f"GPU-{i}f") for i in range(4)], parse(samples.A100_PAIRS))
    assert visible(whole, None) == whole
    two = visible(whole, "1, GPU-3")
    assert [gpu.index for gpu in two.gpus] == [1, 3]
    assert two.islands == ((1,), (3,)) and len(two.nics) == 2
    assert visible(whole, "").gpus == visible(whole, "-1").gpus == ()


def islands(*machines: Machine) -> dict[str, list[tuple[str, int]]]:
    return {name: [(node.name, node.devices) for node in nodes] for name, nodes in as_cluster(machines).islands.items()}


def test_nodes_that_say_nothing_are_islands_of_their_own():
    found = islands(*(Machine(f"gpu-{i}", 8, "h100-sxm") for i in range(3)))
    assert found == {f"gpu-{i}": [(f"gpu-{i}", 8)] for i in range(3)}


def test_nodes_with_one_label_are_one_island_and_those_with_a_rack_only_are_not():
    found = islands(
        Machine("a", 4, "h100-sxm", labels={ISLAND_LABEL: "x"}),
        Machine("b", 4, "h100-sxm", labels={ISLAND_LABEL: "x"}),
        Machine("c", 4, "h100-sxm", labels={RACK_LABEL: "r"}),
        Machine("d", 4, "h100-sxm", labels={RACK_LABEL: "r"}),
    )
    assert found == {"x": [("a", 4), ("b", 4)], "c": [("c", 4)], "d": [("d", 4)]}


def test_trays_of_one_nvlink_domain_are_one_island():
    domain = f"{RACK.hex()}.7"
    trays = [Machine(f"tray-{i}", 4, "b200", hardware=hardware(4, samples.GB200, domain)) for i in range(18)]
    other = Machine("tray-18", 4, "b200", hardware=hardware(4, samples.GB200, f"{RACK.hex()}.8"))
    found = islands(*trays, other)
    assert [sum(devices for _, devices in nodes) for nodes in found.values()] == [72, 4]
    assert [name for name, _ in found[domain]] == [f"tray-{i}" for i in range(18)]


def test_an_island_needs_all_gpus_of_a_node_in_one_domain():
    mixed = Hardware(8, GB, (Gpu(0, "x", fabric="a.1"), Gpu(1, "x", fabric="a.2")))
    assert list(islands(Machine("n", 2, "b200", hardware=mixed))) == ["n"]


def test_bridged_pairs_are_islands_as_far_apart_as_the_bus():
    pairs = Machine("n", 4, "a100-80gb", hardware=hardware(4, samples.A100_PAIRS))
    cluster = as_cluster([pairs])
    assert islands(pairs) == {"n/0": [("n", 2)], "n/2": [("n", 2)]}
    assert cluster.links.fabric == device("a100-80gb").links.node
    two = as_cluster([pairs, Machine("m", 4, "a100-80gb")])
    assert two.links == device("a100-80gb").links


def test_gpus_without_nvlink_share_their_node():
    assert islands(Machine("n", 2, "l40s", hardware=hardware(2, samples.L40S))) == {"n": [("n", 2)]}
    assert islands(Machine("n", 8, "h100-sxm", hardware=hardware(8, samples.h100()))) == {"n": [("n", 8)]}


def test_a_gpu_with_mig_leaves_its_island():
    gpus = [Gpu(i, "x", mig=i == 0) for i in range(4)]
    assert assemble(8, GB, gpus, parse(samples.A100_PAIRS)).islands == ((0,), (1,), (2, 3))


def test_nodes_come_by_rack_island_and_name_with_numbers_as_numbers():
    names = ("gpu-10", "gpu-2", "gpu-1")
    racked = [Machine(name, 1, "h100-sxm", labels={RACK_LABEL: "a" if name == "gpu-10" else "b"}) for name in names]
    assert [node.name for node in as_cluster([Machine(name, 1, "h100-sxm") for name in names]).nodes] == ["gpu-1", "gpu-2", "gpu-10"]
    assert [node.name for node in as_cluster(racked).nodes] == ["gpu-10", "gpu-1", "gpu-2"]


def test_devices_of_a_kind_have_the_memory_of_the_smallest():
    cluster = as_cluster([Machine("a", 2, "cpu", 4 * GB), Machine("b", 2, "cpu", 3 * GB), Machine("c", 8, "h100-sxm")])
    assert {node.name: node.memory_bytes for node in cluster.nodes} == {"a": 3 * GB, "b": 3 * GB, "c": 80 * GB}


def test_sources_that_disagree_are_both_named():
    label = {ISLAND_LABEL: "x"}
    found = [
        Machine("a", 4, "b200", labels=label, hardware=hardware(4, fabric="f.1")),
        Machine("b", 4, "b200", labels=label, hardware=hardware(4, fabric="f.2")),
        Machine("c", 2, "b200", hardware=hardware(4)),
        Machine("d", 4, "b200", hardware=hardware(4, samples.GB200)),
    ]
    assert doubts(found) == [
        "node c offers 2 GPUs to Ray, its driver has 4; Ray's number is used",
        "nodes are labelled rayplane.io/island=x, but NVML says that a is in f.1, b is in f.2; the label is used",
    ]
    assert list(islands(*found[:2])) == ["x"]


def test_an_unknown_kind_in_the_record_of_a_node_is_named():
    from rayplane.runtime.ray.discovery import machine

    record = {"NodeID": "n", "Labels": {}, "Resources": {"GPU": 2.0, "accelerator_type:T4": 1.0}}
    with pytest.raises(PlacementError, match=r"GPUs of node n are \(T4\): describe them in the job's `cluster:` section"):
        machine(record, "n", "GPU", None)
    assert machine(record, "n", "GPU", None, "l40s") == Machine("n", 2, "l40s", 0, {})
    seen = hardware(2, memory_bytes=85 * GB)
    assert machine(record, "n", "GPU", seen) == Machine("n", 2, "h100-sxm", 85 * GB, {}, seen)
