"""A Mesh is a layout made real for one rank: its coordinates, and a Communicator for each axis.

tp  ranks that cut each layer            pp  stages of one replica (pp_back: the same for gradients,
cp  ranks that cut the sequence              so that the two directions cannot block each other on NCCL)
dp  ranks that hold the same weights: the replicas of one stage, and its cp ranks, whose gradients are summed too
shard, replicate   of those: the ranks over which zero cuts, and the ones that hold the same share
tied   the stages of first and last chunk, which both hold a tied embedding (one pair per replica and tp rank)
world  all ranks (save: the same for checkpoints, which are written beside training; beside(NAME): one more, made when it is wanted)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from rayplane.comm.clock import PhaseClock
from rayplane.comm.communicator import Communicator
from rayplane.comm.ledger import Ledger
from rayplane.comm.transport import GlooTransport, NcclTransport
from rayplane.spec.layout import AXES, Coord, Layout

PHASE_OF_AXIS = {
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "shard": "dp",
    "replicate": "dp",
    "pp": "recv_wait",
    "pp_back": "recv_wait",
    "tied": "dp",
    "world": "recv_wait",
}
"""The step phase in which waiting for an axis counts; waiting for the world is waiting for other stages."""


@dataclass(slots=True)
class Mesh:
    """One rank's place in the layout and its ways to talk."""

    layout: Layout
    rank: int
    device: torch.device
    clock: PhaseClock
    ledger: Ledger
    axes: dict[str, Communicator] = field(default_factory=dict)
    _host_link: Callable[[str], GlooTransport] | None = None

    @property
    def coord(self) -> Coord:
        """This rank's coordinates."""
        return self.layout.coord(self.rank)

    @property
    def tp(self) -> Communicator:
        """The ranks that cut each layer."""
        return self.axes["tp"]

    @property
    def cp(self) -> Communicator:
        """The ranks that cut the sequence."""
        return self.axes["cp"]

    @property
    def pp(self) -> Communicator:
        """The stages of this rank's replica."""
        return self.axes["pp"]

    @property
    def dp(self) -> Communicator:
        """The ranks that hold the same weights: replicas of this rank's stage, and its cp ranks."""
        return self.axes["dp"]

    @property
    def shard(self) -> Communicator:
        """The ranks over which zero cuts weights, gradients or optimizer state."""
        return self.axes.get("shard", self.axes["dp"])

    @property
    def replicate(self) -> Communicator:
        """The ranks that hold the same share."""
        return self.axes["replicate"]

    @property
    def tied(self) -> Communicator:
        """First and last stage where this rank is on one of them; else this rank alone."""
        return self.axes["tied"]

    @property
    def world(self) -> Communicator:
        """All ranks."""
        return self.axes["world"]

    def beside(self, name: str) -> Communicator:
        """All ranks once more, for what lies in the hosts' memory on any device; every rank calls it, once for each name.

        It has its own ledger and clock: it is for another thread, outside the steps.
        """
        link = self._host_link(name) if self._host_link else None
        self.axes[name] = Communicator(name, self.rank, self.layout.size, link, Ledger(), PhaseClock(), "host")
        return self.axes[name]

    def close(self) -> None:
        """Leave every axis; peers that wait for this rank fail at once."""
        for axis in self.axes.values():
            axis.close()


def connect(layout: Layout, rank: int, store: dist.Store, device: torch.device, timeout_s: float, clock: PhaseClock) -> Mesh:
    """Form this rank's communicators; every rank of the layout calls it with the same store. Blocks until all peers came."""
    mesh = Mesh(layout, rank, device, clock, Ledger())
    groups: dict[str, tuple[int, ...]] = {axis: layout.peers(rank, axis) for axis in AXES}
    here = layout.coord(rank)
    groups["dp"] = tuple(layout.rank(replace(here, dp=d, cp=c)) for d in range(layout.dp) for c in range(layout.cp))
    size, place = layout.shard_size, groups["dp"].index(rank)
    groups["replicate"] = groups["dp"][place % size :: size] if size > 1 else (rank,)
    if size < len(groups["dp"]):
        groups["shard"] = groups["dp"][place - place % size :][:size]
    stages = groups["pp_back"] = groups["pp"]
    ends = tuple(stages[layout.stage_of_chunk(c)] for c in (0, layout.num_chunks - 1))
    groups["tied"] = ends if rank in ends and ends[0] != ends[1] else (rank,)
    groups["world"] = tuple(range(layout.size))
    transport = NcclTransport if device.type == "cuda" else GlooTransport
    for axis, ranks in groups.items():
        link = None
        if len(ranks) > 1:
            link = transport(dist.PrefixStore(f"{axis}/{ranks[0]}", store), ranks.index(rank), len(ranks), timeout_s)
        mesh.axes[axis] = Communicator(axis, ranks.index(rank), len(ranks), link, mesh.ledger, clock, PHASE_OF_AXIS[axis])
    # Its own ledger and clock: it is used by another thread, outside the steps.
    link = transport(dist.PrefixStore("save", store), rank, layout.size, timeout_s) if layout.size > 1 else None
    mesh.axes["save"] = Communicator("save", rank, layout.size, link, Ledger(), PhaseClock(), "host")
    if layout.size > 1:
        mesh._host_link = lambda name: GlooTransport(dist.PrefixStore(name, store), rank, layout.size, timeout_s)
    return mesh
