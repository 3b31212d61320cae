"""The process of one rank that measures: `python -m rayplane.train.calibration --fd N`, started and watched like a training rank.

ready ─▶ (store) ─▶ join ─▶ for each mesh: communicators, kernels, collectives ─▶ measured … measured ─▶ done
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rayplane.comm.clock import clock_for
from rayplane.comm.mesh import Mesh, connect
from rayplane.plan.measured.probes import GroupProbe, Probes
from rayplane.rank.life import live
from rayplane.spec.layout import Layout
from rayplane.telemetry.channel import Channel, Message
from rayplane.train.kernel_probes import PROBES
from rayplane.train.network_probes import collectives, messages
from rayplane.train.stopwatch import Stopwatch

TIMEOUT_S = 300.0
CPU_INFO = Path("/proc/cpuinfo")
Degrees = tuple[int, int, int, int]
"""dp, pp, cp, tp."""


def measure(channel: Channel, join: Message, store: dist.Store | None) -> None:
    """Measure everything that the owner asks for, and send each row."""
    torch.set_flush_denormal(True)
    asked = join["config"]["probes"]
    probes = Probes(asked["rows"], tuple(GroupProbe(**g) for g in asked["groups"]), tuple(asked["sizes"]), asked["least_s"])
    store = store or dist.TCPStore(join["host"], join["port"], is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    device = torch.device(join["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    watch, size = Stopwatch(device, probes.least_s), join["config"]["ranks"]
    for degrees in _meshes(probes, size):
        name = "-".join(map(str, degrees))
        layout = Layout(*degrees)
        mesh = connect(layout, join["rank"], dist.PrefixStore(name, store), device, TIMEOUT_S, clock_for(device))
        for kind, row in _measured(probes, degrees, mesh, watch):
            channel.send({"type": "measured", "kind": kind, "row": row})
        mesh.close()
    channel.send({"type": "done", "hardware": _hardware(device), "torch": torch.__version__})


def _meshes(probes: Probes, size: int) -> list[Degrees]:
    """The layouts to form, that of ranks by themselves first."""
    cut = [(size // (row["tp"] * row["cp"]), 1, row["cp"], row["tp"]) for row in probes.rows["layers"]]
    return sorted({(size, 1, 1, 1), *cut, *((g.dp, g.pp, 1, g.tp) for g in probes.groups)}, reverse=True)


def _measured(probes: Probes, degrees: Degrees, mesh: Mesh, watch: Stopwatch) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(kind, row) of all that is measured in a mesh."""
    dp, pp, cp, tp = degrees
    alone = dp == mesh.layout.size
    if alone and mesh.device.type == "cpu":
        yield "fixed", {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    for kind, probe in PROBES.items():
        for row in probes.rows[kind]:
            if (pp, cp, tp) == (1, row["cp"], row["tp"]) if kind == "layers" else alone:
                mesh.world.all_reduce(torch.zeros(1, device=mesh.device))
                if row.get("busy", 0) != 1 or mesh.rank == 0 or mesh.layout.size == 1:
                    wall, cpu = time.perf_counter(), time.thread_time()
                    yield kind, {**row, **probe(row, mesh, watch)}
                    if kind == "products" and mesh.device.type == "cpu":
                        yield "work", {"wall_s": time.perf_counter() - wall, "cpu_s": time.thread_time() - cpu}
    for group in probes.groups:
        if (group.dp, group.pp, 1, group.tp) == degrees:
            mesh.world.all_reduce(torch.zeros(1, device=mesh.device))
            if group.axis == "pp":
                yield from (("messages", {"inside": group.per_island > 1, **row}) for row in messages(mesh, list(probes.sizes), watch))
            else:
                shape = {"size": group.size, "per_island": group.per_island}
                yield from (
                    ("collectives", {**shape, **row}) for row in collectives(mesh.axes[group.axis], list(probes.sizes), mesh, watch)
                )


def _hardware(device: torch.device) -> str:
    """As the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    live(measure)
