"""This machine as hardware: its GPUs, what NVLink joins, the network cards nearest to each, cores and memory.

NVML, else nvidia-smi ──▶ GPUs ─┐
nvidia-smi topo -m    ──▶ Topo ─┴─▶ Hardware ◀── cores, memory: the operating system
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayplane.runtime.hardware import nvml
from rayplane.runtime.hardware.gpu import QUERY, Gpu, from_smi
from rayplane.runtime.hardware.topo import Topo, parse

SMI = "nvidia-smi"
SMI_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """Of one host."""

    cores: int
    """That a process may use."""
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    islands: tuple[tuple[int, ...], ...] = ()
    """GPUs that NVLink joins, by their numbers; empty where that is not known."""
    nics: tuple[tuple[str, ...], ...] = ()
    """The nearest network cards of each of `gpus`."""


def this_hardware() -> Hardware:
    """Of the machine that this runs on."""
    gpus = nvml.read() or from_smi(_smi(f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return assemble(len(os.sched_getaffinity(0)), memory_bytes, gpus, parse(_smi("topo", "-m")) if gpus else Topo())


def assemble(cores: int, memory_bytes: int, gpus: Sequence[Gpu], topo: Topo) -> Hardware:
    """With the islands and cards of those GPUs that are there; one with MIG on is by itself."""
    whole = {gpu.index for gpu in gpus if not gpu.mig}
    islands = [tuple(g for g in island if g in whole) for island in topo.islands]
    islands += [(gpu.index,) for gpu in gpus if gpu.mig and topo.islands]
    nics = topo.nics or {}
    return Hardware(
        cores, memory_bytes, tuple(gpus), tuple(sorted(filter(None, islands))), tuple(nics.get(gpu.index, ()) for gpu in gpus)
    )


def visible(hardware: Hardware, listed: str | None) -> Hardware:
    """With those GPUs only that CUDA_VISIBLE_DEVICES lists, by number or by the beginning of their uuid; all where it is not set."""
    if listed is None:
        return hardware
    wanted = [entry.strip() for entry in listed.split(",") if entry.strip()]
    kept = [i for i, gpu in enumerate(hardware.gpus) if any(w == str(gpu.index) or gpu.uuid.startswith(w) for w in wanted)]
    gpus = tuple(hardware.gpus[i] for i in kept)
    there = {gpu.index for gpu in gpus}
    islands = (tuple(g for g in island if g in there) for island in hardware.islands)
    nics = tuple(hardware.nics[i] for i in kept)
    return replace(hardware, gpus=gpus, islands=tuple(filter(None, islands)), nics=nics)


def _smi(*arguments: str) -> str:
    """What nvidia-smi prints; nothing where it is not there or fails."""
    try:
        return subprocess.run((SMI, *arguments), capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
