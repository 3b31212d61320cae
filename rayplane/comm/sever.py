"""Breaking every connection of this process: what waits for a peer fails at once, here and at the peer.

    rank a ═══ rank b ═══ rank c          b severs: a and c, and every thread of b that waits for them, get "connection closed"

Destroying a group frees nobody who waits for it in the same process, and its connections stay open as long as such a wait holds them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def sever() -> None:
    """Shut down all TCP connections of this process; those who own them close them. Any thread may call it."""
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            _cut(int(entry.name))


def _cut(descriptor: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    copy = os.dup(descriptor)
    try:
        end = socket.socket(fileno=copy)
    except OSError:  # meanwhile it was closed, and the number is another file's
        os.close(copy)
        return
    with end:
        if end.family in (socket.AF_INET, socket.AF_INET6) and not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            end.shutdown(socket.SHUT_RDWR)
