"""Seconds of collectives and messages between ranks: the runtime's communicators, all groups of a kind at once, as in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.mesh import Mesh
from rayplane.train.kernel_probes import agreed
from rayplane.train.stopwatch import Lap, Stopwatch

OPS = ("all_reduce", "all_gather", "reduce_scatter")
ELEMENT_BYTES = 4
TAG = 7


def collectives(comm: Communicator, sizes: list[int], mesh: Mesh, watch: Stopwatch) -> Iterator[dict[str, Any]]:
    """Each operation of an axis at each size, which is that of the whole tensor."""
    for op in OPS:
        for num_bytes in sizes:
            part = -(-num_bytes // ELEMENT_BYTES // comm.size)
            x = torch.zeros(part if op == "all_gather" else part * comm.size, device=mesh.device)
            run = getattr(comm, op)

            def body(lap: Lap, run: Any = run, x: torch.Tensor = x) -> None:
                run(x)
                lap()

            times = agreed(mesh, watch.times_for(body))
            yield {"op": op, "bytes": part * comm.size * ELEMENT_BYTES, "seconds": watch.laps_s(body, times)[0]}


def messages(mesh: Mesh, sizes: list[int], watch: Stopwatch) -> Iterator[Mapping[str, Any]]:
    """There and back between two stages, halved. Each direction has its own communicator: on one, NCCL's would wait in turn."""
    rank = mesh.pp.rank
    there, back_again = (mesh.axes[axis] for axis in (("pp_back", "pp") if rank else ("pp", "pp_back")))
    for num_bytes in sizes:
        out, back = (torch.zeros(num_bytes // ELEMENT_BYTES, device=mesh.device) for _ in range(2))

        def body(lap: Lap, out: torch.Tensor = out, back: torch.Tensor = back) -> None:
            arrived = back_again.start_recv(back, 1 - rank, TAG)
            if rank:
                arrived()
            sent = there.start_send(out, 1 - rank, TAG)
            if not rank:
                arrived()
            sent()
            lap()

        times = agreed(mesh, watch.times_for(body))
        yield {"bytes": num_bytes, "seconds": watch.laps_s(body, times)[0] / 2}
