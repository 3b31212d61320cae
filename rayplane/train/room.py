"""Whether every host has room in memory for two copies, the complete one and the one that is being written, said before the first step.

needed on a host = 2 x (the files of its ranks + those of the ranks whose partners are there)
"""

from __future__ import annotations

from collections.abc import Sequence

from rayplane.errors import RayplaneError
from rayplane.train.holdings import needed_bytes
from rayplane.train.ram_folder import FIELD

COPIES = 2


def check_room(memory_dir: str, hosts: Sequence[str], sizes: Sequence[int], rooms: Sequence[int]) -> None:
    """RayplaneError naming the first host with too little. By rank: its host, the size of its file, the room on its host."""
    for host, needed in needed_bytes(hosts, sizes).items():
        room = rooms[hosts.index(host)]
        if COPIES * needed > room:
            ranks = [rank for rank, other in enumerate(hosts) if other == host]
            who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
            raise RayplaneError(
                f"{FIELD}: {memory_dir} on the host of {who} has room for {_mb(room)}, "
                f"and two copies there need {_mb(COPIES * needed)}; "
                "enlarge it (docker run --shm-size, in Kubernetes an emptyDir with medium: Memory at /dev/shm), "
                "name a larger folder in memory, or leave memory_every out"
            )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
