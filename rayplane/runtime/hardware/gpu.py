"""A GPU as its driver describes it, made from what NVML answered, or from `nvidia-smi --query-gpu` where NVML's package is not there.

NVML's fabric information      state completed, status success, a cluster's uuid that is not zero      ──▶ "CLUSTER.CLIQUE"
                               not supported, in progress, all zeros (NVSwitch of one host)            ──▶ ""

GPUs of several hosts with the same cluster and clique reach each other by NVLink: an NVL72.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""
MIB = 2**20
QUERY = ("index", "uuid", "name", "memory.total", "memory.used", "mig.mode.current")
"""What nvidia-smi is asked for, in this order."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. What its driver does not say is zero or empty."""

    index: int
    name: str
    """As the driver calls it."""
    uuid: str = ""
    memory_bytes: int = 0
    used_bytes: int = 0
    fabric: str = ""
    """The NVLink domain beyond this host, if it is in one."""
    mig: bool = False
    """Whether it is cut into instances, which NVLink does not join."""


def from_nvml(record: Mapping[str, Any]) -> Gpu:
    """From the answers to single questions; None where NVML had none."""
    total, used = record.get("memory") or (0, 0)
    return Gpu(
        index=record["index"],
        name=_text(record.get("name")),
        uuid=_text(record.get("uuid")),
        memory_bytes=total,
        used_bytes=used,
        fabric=_fabric(record.get("fabric")),
        mig=bool((record.get("mig") or (0,))[0]),
    )


def from_smi(text: str) -> tuple[Gpu, ...]:
    """From the lines of --format=csv,noheader,nounits; lines of another form, such as an error, are none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return tuple(_of_row(row) for row in rows if len(row) == len(QUERY) and row[0].isdigit())


def _of_row(row: list[str]) -> Gpu:
    index, uuid, name, total, used, mig = row
    return Gpu(int(index), name, uuid, _mib(total), _mib(used), mig=mig == "Enabled")


def _mib(text: str) -> int:
    return int(text) * MIB if text.isdigit() else 0


def _text(value: Any) -> str:
    """Old versions of the package answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value or ""


def _fabric(answer: tuple[bytes, int, int, int] | None) -> str:
    """(uuid, status, clique, state) as the name of a domain."""
    if answer is None:
        return ""
    uuid, status, clique, state = answer
    return f"{uuid.hex()}.{clique}" if state == COMPLETED and status == 0 and any(uuid) else ""
