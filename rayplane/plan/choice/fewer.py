"""Whether some devices had better be left idle, and how many to try without.

of the number of devices those are left out on which the compute of the best layout on all, shared evenly, takes longer than its step

up to 16 devices           all smaller numbers are tried
26 devices, 16 samples     dp 13 x pp 2 has 2 samples on some replicas, as dp 8 has: of 25 to 16 those 4 that share most evenly
2 islands, slow fabric     most of a step is communication: half of the devices, an island, a quarter, … are tried
all else                   nothing
"""

from __future__ import annotations

import math

from rayplane.spec.layout import split
from rayplane.spec.plan import Candidate

FEW = 16
"""Up to so many devices every smaller number is tried."""
LARGE = 1024
"""On more devices one step from an even share to the next is too small to look for."""
TRIED = 4
"""At most so many because of uneven shares."""


def sizes(best: Candidate, global_batch: int, layers: int, num_devices: int, island: int) -> list[int]:
    """Numbers of devices on which a layout may be faster than the best one on all, most devices first."""
    if num_devices <= FEW:
        return list(range(num_devices - 1, 0, -1))
    layout, estimate = best.layout, best.estimate
    microbatches = math.ceil(global_batch / layout.micro_batch)
    device_s = sum(estimate.stage_s) * microbatches * layout.cp * layout.tp
    least = max(1, math.floor(device_s / estimate.step_s) + 1) if math.isfinite(device_s) else num_devices
    halves = [num_devices >> k for k in range(1, num_devices.bit_length())]
    found = {n for n in (*halves, island) if least <= n < num_devices}
    busiest = split(global_batch, layout.dp, 0)[1] * max(layout.boundaries) * layout.vpp / (layout.cp * layout.tp)
    even = math.ceil(global_batch * layers / busiest)
    smaller = range(max(least, even), num_devices) if num_devices <= LARGE else ()
    uneven = [n for n in smaller if _evenest(n, global_batch, layers) <= busiest]
    return sorted({*found, *sorted(uneven, key=lambda n: (_evenest(n, global_batch, layers), n))[:TRIED]}, reverse=True)


def _evenest(num_devices: int, global_batch: int, layers: int) -> float:
    """Layers times samples of the busiest rank, where they are shared as evenly as so many devices can, with tp up to a node."""
    shares = [
        math.ceil(global_batch / dp) * math.ceil(layers / pp) / (num_devices // (dp * pp))
        for dp in range(1, min(num_devices, global_batch) + 1)
        if num_devices % dp == 0
        for pp in range(1, min(num_devices // dp, layers) + 1)
        if num_devices % (dp * pp) == 0 and num_devices // (dp * pp) <= 8
    ]
    return min(shares, default=math.inf)
