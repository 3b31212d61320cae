"""The life of a rank: `python -m ENTRY --fd N`, started and watched by its owner; attempts.py has its course.

owner ──socket N──▶ Channel ──▶ attempts: the store, the mesh, the entry's body        a failed one leaves its mesh and its memory
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from rayplane.comm.clock import clock_for
from rayplane.comm.mesh import Mesh, connect
from rayplane.comm.sever import sever
from rayplane.rank.attempts import Body, attend
from rayplane.spec.layout import Layout
from rayplane.telemetry.channel import Channel, Message


def live(body: Body, again: bool = False) -> None:
    """Be one rank, from its start to the end of `body`; what goes wrong is told to the owner as "failed".

    `again`: the body may be begun anew, in the same process, after it failed or was recalled.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    channel = Channel.open(parser.parse_args().fd, sever if again else None)
    torch.set_num_threads(1)
    attend(channel, body, _host_store, _clear if again else None)


def mesh_of(join: Message, store: dist.Store | None, timeout_s: float) -> Mesh:
    """Meet the other ranks of the layout that the message's config has; no wait for a peer is longer than `timeout_s`."""
    given = join["config"]["layout"]
    layout = Layout(**{**given, "boundaries": tuple(given["boundaries"])})
    store = store or dist.TCPStore(join["host"], join["port"], is_master=False, timeout=timedelta(seconds=timeout_s))
    device = torch.device(join["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return connect(layout, join["rank"], store, device, timeout_s, clock_for(device))


@contextmanager
def in_mesh(mesh: Mesh, channel: Channel) -> Iterator[None]:
    """While inside, a recall frees whoever waits for the mesh, and so does an error that leads out, here and at the peers."""
    # NCCL's waits are on the device: only an abort ends them. Its sockets are not ours to break.
    leave = mesh.close if mesh.device.type == "cuda" else sever
    channel.on_recall(leave)
    try:
        yield
    except BaseException:
        leave()
        raise
    finally:
        channel.on_recall(sever)


def _host_store(address: str) -> tuple[dist.Store, int]:
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def _clear() -> None:
    """Free what is garbage by now: errors, the frames that they went through and what those held refer to each other."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
