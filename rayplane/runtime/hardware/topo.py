"""The matrix of `nvidia-smi topo -m`, read: which GPUs NVLink joins, and which network cards are nearest to each.

            GPU0  GPU1  GPU2  GPU3  NIC0
      GPU0   X    NV4   SYS   SYS   PXB          islands  (0, 1), (2, 3)
      GPU1  NV4    X    SYS   SYS   PXB          cards    0: mlx5_0, 1: mlx5_0, 2: none nearer than another …
      …
      NIC Legend:  NIC0: mlx5_0

A distance is NV# over so many NVLinks, else by PCIe: PIX one switch, PXB several, PHB the CPU's bridge, NODE its NUMA node, SYS beyond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""From near to far."""
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
COLUMN = re.compile(r"(?:GPU|NIC)\d+|(?:mlx|bnxt|efa|irdma|hfi|ib)\w+")
"""Old drivers head the columns of cards by their names."""
LEGEND = re.compile(r"^\s*(NIC\d+):\s+(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Topo:
    """GPUs by the driver's numbers. Both are empty where the text holds no matrix."""

    islands: tuple[tuple[int, ...], ...] = ()
    """GPUs that NVLink joins, directly or by way of others; one without a link is by itself."""
    nics: Mapping[int, tuple[str, ...]] | None = None
    """The nearest cards of each GPU; several where they are equally near."""


def parse(text: str) -> Topo:
    """The matrix in what the command printed."""
    lines = [line for line in ESCAPES.sub("", text).splitlines() if line.strip()]
    head = next((i for i, line in enumerate(lines) if line.split()[0] == "GPU0" and "X" not in line.split()), None)
    if head is None:
        return Topo()
    columns = [word for word in lines[head].split() if COLUMN.fullmatch(word)]
    names = dict(LEGEND.findall("\n".join(lines)))
    rows = {words[0]: dict(zip(columns, words[1:], strict=False)) for line in lines[head + 1 :] if (words := line.split())}
    gpus = {int(name.removeprefix("GPU")): row for name, row in rows.items() if re.fullmatch(r"GPU\d+", name) and name in columns}
    return Topo(_islands(gpus), {gpu: _nearest(row, names) for gpu, row in gpus.items()})


def _islands(gpus: Mapping[int, Mapping[str, str]]) -> tuple[tuple[int, ...], ...]:
    island = {gpu: gpu for gpu in gpus}
    for gpu in sorted(gpus):
        for other in sorted(gpus):
            if re.fullmatch(r"NV\d+", gpus[gpu].get(f"GPU{other}", "")):
                low, high = sorted((island[gpu], island[other]))
                island = {g: low if of == high else of for g, of in island.items()}
    return tuple(tuple(g for g in sorted(gpus) if island[g] == first) for first in sorted(set(island.values())))


def _nearest(row: Mapping[str, str], names: Mapping[str, str]) -> tuple[str, ...]:
    cards = {c: DISTANCES.index(d) for c, d in row.items() if not c.startswith("GPU") and d in DISTANCES}
    return tuple(names.get(card, card) for card, distance in cards.items() if distance == min(cards.values()))
