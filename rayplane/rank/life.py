"""The life of a rank: `python -m ENTRY --fd N`, started and watched by its owner.

ready ─▶ (host_store ─▶ store) ─▶ join ─▶ the entry's body ─▶ the process ends            what goes wrong: failed
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from rayplane.comm.clock import clock_for
from rayplane.comm.mesh import Mesh, connect
from rayplane.errors import RayplaneError
from rayplane.spec.layout import Layout
from rayplane.telemetry.channel import Channel, Message

OWNER_TIMEOUT_S = 600.0
Body = Callable[[Channel, Message, dist.Store | None], None]
"""What a rank does once it is told to join: with that message, and the store where it is there already."""


def live(body: Body) -> None:
    """Be one rank, from its start to the end of `body`; what goes wrong is told to the owner as "failed"."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    channel = Channel.open(parser.parse_args().fd)
    try:
        _live(channel, body)
    except RayplaneError as error:
        channel.send({"type": "failed", "kind": "user", "message": str(error), "traceback": ""})
        raise SystemExit(1) from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        channel.send({"type": "failed", "kind": "rank", "message": message, "traceback": traceback.format_exc()})
        raise SystemExit(1) from error


def _live(channel: Channel, body: Body) -> None:
    torch.set_num_threads(1)
    channel.send({"type": "ready"})
    first = channel.expect(("host_store", "join"), OWNER_TIMEOUT_S)
    store = None
    if first["type"] == "host_store":
        store = dist.TCPStore(first["address"], 0, is_master=True, wait_for_workers=False)
        channel.send({"type": "store", "host": first["address"], "port": store.port})
        first = channel.expect("join", OWNER_TIMEOUT_S)
    body(channel, first, store)


def mesh_of(join: Message, store: dist.Store | None, timeout_s: float) -> Mesh:
    """Meet the other ranks of the layout that the message's config has; no wait for a peer is longer than `timeout_s`."""
    given = join["config"]["layout"]
    layout = Layout(**{**given, "boundaries": tuple(given["boundaries"])})
    store = store or dist.TCPStore(join["host"], join["port"], is_master=False, timeout=timedelta(seconds=timeout_s))
    device = torch.device(join["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return connect(layout, join["rank"], store, device, timeout_s, clock_for(device))
