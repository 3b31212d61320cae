"""Which ways of which systems train_peers.py compares: one column for each, by case.

rayplane's stages are cut by its planner; peers cut evenly, as they do by themselves. Columns that are `given_cut` give a peer the
planner's cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reference import GLOBAL_BATCH, SEQ_LEN, SPEC
from systems import DISTRIBUTIONS

from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import even_boundaries
from rayplane.spec.plan import Workload

MEMORY_BYTES = 10 * 10**9
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One way of one system to run a case: its name, and the fields of its Task."""

    name: str
    system: str
    fields: Fields
    given_cut: bool = False

    @property
    def words(self) -> str:
        """The name, with the layers of each chunk."""
        return f"{self.name} {'+'.join(map(str, self.fields.get('boundaries', (SPEC.layers,))))}"


def cut(schedule: str, vpp: int = 1) -> tuple[int, ...]:
    """The planner's boundaries for two stages on CPU devices."""
    cluster = homogeneous({"here": 2}, "cpu", MEMORY_BYTES, {})
    section = LayoutSection.model_validate({"pp": 2, "micro_batch": 2, "schedule": schedule, "vpp": vpp})
    return plan(SPEC, Workload(GLOBAL_BATCH, SEQ_LEN, "fp32"), cluster, section).layout.boundaries


def one_device() -> list[Column]:
    """Every system on one device."""
    return [Column(system, system, {"micro_batch": 2}) for system in DISTRIBUTIONS]


def two_stages() -> Iterator[Column]:
    """Schedules of every system over two stages."""
    common = {"pp": 2, "micro_batch": 2}
    for schedule, vpp in (("1f1b", 1), ("zb-h1", 1), ("zbv", 2)):
        fields = {**common, "schedule": schedule, "vpp": vpp, "boundaries": cut(schedule, vpp)}
        yield Column(f"rayplane {schedule}", "rayplane", fields)
    single = {**common, "boundaries": even_boundaries(SPEC.layers, 2)}
    multi = {**common, "boundaries": even_boundaries(SPEC.layers, 4), "vpp": 2}
    yield Column("rayplane 1f1b even", "rayplane", {**single, "schedule": "1f1b"})
    for schedule in ("GPipe", "1F1B"):
        yield Column(f"torch {schedule}", "torch", {**single, "schedule": schedule})
    for schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        yield Column(f"torch {schedule}", "torch", {**multi, "schedule": schedule})
    for system in ("torchtitan", "deepspeed"):
        yield Column(f"{system} 1F1B", system, {**single, "schedule": "1F1B"})
        yield Column(f"{system} DualPipeV", system, {**multi, "schedule": "DualPipeV"})
    yield Column("megatron 1F1B", "megatron", single)
    yield Column("megatron interleaved", "megatron", multi)
    yield Column("torch 1F1B, cut", "torch", {**single, "schedule": "1F1B", "boundaries": cut("1f1b")}, given_cut=True)
    yield Column("torch DualPipeV, cut", "torch", {**multi, "schedule": "DualPipeV", "boundaries": cut("zbv", 2)}, given_cut=True)


def two_parts_of_a_layer() -> list[Column]:
    """Tensor parallelism of every system, and with sequence parallelism where it runs here."""
    common = {"tp": 2, "micro_batch": 4}
    plain = [Column(system, system, common) for system in DISTRIBUTIONS]
    # Megatron-Core has its sequence parallel norms in Transformer Engine only.
    return plain + [Column(f"{system} sp", system, {**common, "sp": True}) for system in ("rayplane", "torchtitan")]


def two_replicas() -> list[Column]:
    """Data parallelism of every system, and with the optimizer's state shared where a system has that by itself."""
    common = {"dp": 2, "micro_batch": 4}
    plain = [Column(system, system, common) for system in DISTRIBUTIONS]
    return plain + [Column(f"{system} zero1", system, {**common, "zero": 1}) for system in ("rayplane", "deepspeed")]


CASES = {"serial": one_device, "pp2": two_stages, "tp2": two_parts_of_a_layer, "dp2": two_replicas}
