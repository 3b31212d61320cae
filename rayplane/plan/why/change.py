"""A change to what a plan is made for, as a user writes it after --what-if: a quantity and how much of it.

2x  x2  0.5x        times as much             nic=2x
+25%  -10%          the same, in words        hbm=+25%
+8  -8              so much more or less      devices=+8
80  80GB  400Gb/s   exactly so much           hbm=80, nic=400Gb/s, latency=5us, seq_len=32k
h100-sxm            a name                    gpu=h200
…, …                several at once           nic=2x,latency=0.5x
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from enum import Enum

from rayplane.errors import Problem, SpecError

ALIASES = {
    "nic": ("nic", "nics", "fabric", "network", "ib", "infiniband"),
    "nvlink": ("nvlink", "xgmi", "island_link"),
    "latency": ("latency",),
    "hbm": ("hbm", "memory", "mem", "memory_gb", "vram"),
    "devices": ("devices", "gpus"),
    "nodes": ("nodes", "hosts"),
    "island": ("island", "domain", "nvlink_domain"),
    "gpu": ("gpu", "device", "kind"),
    "batch": ("batch", "global_batch"),
    "seq_len": ("seq_len", "seq", "context"),
}
"""Every quantity, with what else it may be called."""
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
UNITS = {
    "nic": {"": 1.0, "GB/s": 1.0, "GBps": 1.0, "Gb/s": 0.125, "Gbps": 0.125, "Gbit/s": 0.125, "TB/s": 1000.0},
    "latency": {"": 1.0, "us": 1.0, "µs": 1.0, "ns": 1e-3, "ms": 1e3},
    "hbm": {"": 1.0, "GB": 1.0, "GiB": 1.073741824, "TB": 1000.0},
    "count": {"": 1.0},
    "seq_len": {"": 1.0, "k": 1024.0, "K": 1024.0, "M": 1048576.0},
}
"""What a number may end with, and what it is then worth in GB/s, µs, GB, devices or tokens."""
OF = {"nvlink": "nic", "devices": "count", "nodes": "count", "island": "count", "batch": "count"}
"""Quantities that have the units of another."""
MEANT = {
    "nic": "GB/s of a device's network card (50, 50GB/s or 400Gb/s)",
    "nvlink": "GB/s of a device's link within its island (450)",
    "latency": "µs of a message across the fabric (5us)",
    "hbm": "GB of a device (80)",
    "devices": "a number of devices (64)",
    "nodes": "a number of nodes (16)",
    "island": "devices of an island (16)",
    "batch": "samples of a step (512)",
    "seq_len": "tokens of a sample (8192, 32k)",
}
NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
MOST = 1e7
"""Beyond this nothing is meant."""


class How(Enum):
    """What a number does."""

    TIMES = "times"
    PLUS = "plus"
    EXACTLY = "exactly"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity and how much of it. In GB/s, µs, GB, devices, nodes, samples or tokens."""

    written: str
    name: str
    how: How
    value: float = 0.0
    text: str = ""
    """What stood there, where it is a name."""

    def of(self, now: float) -> float:
        """What a quantity becomes."""
        match self.how:
            case How.TIMES:
                return now * self.value
            case How.PLUS:
                return now + self.value
            case _:
                return self.value

    def wrong(self, message: str) -> SpecError:
        """An error that names this change."""
        return SpecError(Problem(message, f"--what-if {self.written}"))


def changes(written: str) -> tuple[Change, ...]:
    """`nic=2x,hbm=80` as changes. Raises SpecError naming what cannot be read and what could be meant."""
    return tuple(_change(part.strip()) for part in written.split(","))


def _change(written: str) -> Change:
    name, equals, value = (part.strip() for part in written.partition("="))
    field = f"--what-if {written}"
    known = ", ".join(ALIASES)
    if not equals or not value:
        example = f"{NAMES[name.lower()]}=2x" if name.lower() in NAMES else "nic=2x"
        raise SpecError(Problem(f"write a quantity and how much of it, such as {example}; quantities: {known}", field))
    if (key := NAMES.get(name.lower().replace("-", "_"))) is None:
        close = difflib.get_close_matches(name.lower(), NAMES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise SpecError(Problem(f"'{name}' is nothing that can be changed; {hint}Quantities: {known}", field))
    if key == "gpu":
        return Change(written, key, How.NAMED, text=value)
    return _amount(written, key, value)


def _amount(written: str, key: str, value: str) -> Change:
    units = UNITS[OF.get(key, key)]
    if found := re.fullmatch(rf"{NUMBER}\s*[x\u00d7]|[x\u00d7]\s*{NUMBER}", value):
        change = Change(written, key, How.TIMES, float(found[1] or found[2]))
    elif found := re.fullmatch(rf"([+-]){NUMBER}\s*%", value):
        change = Change(written, key, How.TIMES, 1 + float(found[1] + found[2]) / 100)
    elif (found := re.fullmatch(rf"([+-]?){NUMBER}\s*([A-Za-zµ/]*)", value)) and found[3] in units:
        amount = float(found[2]) * units[found[3]]
        change = Change(written, key, How.PLUS if found[1] else How.EXACTLY, -amount if found[1] == "-" else amount)
    else:
        raise Change(written, key, How.NAMED).wrong(f"cannot read '{value}'; write a factor (2x), a change (+8, +25%) or {MEANT[key]}")
    if not math.isfinite(change.value) or abs(change.value) > MOST or (change.how is not How.PLUS and change.value <= 0):
        raise change.wrong(f"'{value}' is no sensible amount; use more than nothing and at most {MOST:,.0f}")
    return change
