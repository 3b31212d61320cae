"""The attempts of a job that one rank process takes part in, one after the other; without torch.

ready ─▶ (host_store ─▶ store) ─▶ join ─▶ the entry's body ─▶ the process ends         what goes wrong: failed, and the process ends

Where the entry can begin anew, what goes wrong, or a recall, breaks the rank's connections, which frees its neighbours in turn:

join ─▶ body ─▶ failed ─▶ recall ─▶ parked ─▶ (host_store ─▶ store) ─▶ join ─▶ body …          a user's error ends the process
          └──────────────▶ recall ─┘
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rayplane.comm.sever import sever
from rayplane.errors import RayplaneError
from rayplane.rank.faults import kind_of
from rayplane.rank.lease import Lease, hold
from rayplane.telemetry.channel import Channel, Message

Body = Callable[[Channel, Message, Any], None]
"""What a rank does once it is told to join: with that message, and the store where it is there already."""
HostStore = Callable[[str], tuple[Any, int]]
"""Opens a store at this host's address: (the store, its port)."""


def attend(channel: Channel, body: Body, host_store: HostStore, clear: Callable[[], None] | None = None) -> None:
    """Be a rank until a body ends in peace. `clear` frees what a failed attempt has left; without it, the first failure is the end.

    With it, the channel leaves by `sever` when it is recalled.
    """
    channel.send({"type": "ready"})
    while True:
        if _attempt(channel, body, host_store, again=clear is not None):
            return
        assert clear, "an attempt that failed ends the process"
        sever()
        clear()
        channel.park()


def _attempt(channel: Channel, body: Body, host_store: HostStore, again: bool) -> bool:
    """Whether it ended in peace. Nothing of it is referenced afterwards, for its errors and their frames end here."""
    try:
        _join(channel, body, host_store)
    except Exception as error:
        if not channel.recalled:
            kind, ours = kind_of(error), isinstance(error, RayplaneError)
            message, trace = (str(error), "") if ours else (f"{type(error).__name__}: {error}", traceback.format_exc())
            channel.send({"type": "failed", "kind": kind, "message": message, "traceback": trace})
            if kind == "user" or not again:
                raise SystemExit(1) from error
    else:
        return True
    return False


def _write_to(path: str) -> None:
    """Have the process's output go on in a file: the log of the rank that it now is."""
    if path:
        sys.stdout.flush()
        sys.stderr.flush()
        with Path(path).open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)


def _join(channel: Channel, body: Body, host_store: HostStore) -> None:
    order, store = channel.expect(("host_store", "join"), None), None
    if order["type"] == "host_store":
        store, port = host_store(order["address"])
        channel.send({"type": "store", "host": order["address"], "port": port})
        order = channel.expect("join", None)
    _write_to(order["log"])
    with ExitStack() as held:
        if order["lease"]:
            held.enter_context(hold(Lease(**order["lease"])))
        body(channel, order, store)
