"""Ranks tell each other small values beside training: every rank gets what every rank said.

rank 0  {"problem": ""}           ─▶  [{"problem": ""}, {"problem": "no space"}]   on both
rank 1  {"problem": "no space"}
"""

from __future__ import annotations

import json
from typing import Any

import torch

from rayplane.comm.communicator import Communicator


def gathered(axis: Communicator, value: dict[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Every rank's JSON value, in rank order; `device` is where the axis has its tensors. Every rank of the axis calls it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = axis.all_gather(torch.tensor([len(raw)], device=device)).tolist()
    parts = axis.all_gather(raw, sizes).cpu().split(sizes)
    return [json.loads(bytes(p.numpy())) for p in parts]
