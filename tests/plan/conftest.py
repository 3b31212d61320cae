"""Models and clusters that the planner's tests share."""

import pytest

from rayplane.plan.machine.catalog import described, homogeneous
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload


@pytest.fixture
def reference() -> ModelSpec:
    """The model of the measured layouts."""
    return ModelSpec(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1376, vocab=8192, name="reference")


@pytest.fixture
def reference_work() -> Workload:
    return Workload(global_batch=16, seq_len=256, precision="fp32")


@pytest.fixture
def two_cpus() -> ClusterSpec:
    return homogeneous({"here": 2}, "cpu", 4 * 10**9, {})


@pytest.fixture
def llama3_8b() -> ModelSpec:
    return ModelSpec(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab=128256, max_seq=8192)


@pytest.fixture
def llama_work() -> Workload:
    return Workload(global_batch=512, seq_len=8192, precision="bf16")


@pytest.fixture
def h100s_64() -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device="h100-sxm", devices=8, count=8, name="dgx")]))
