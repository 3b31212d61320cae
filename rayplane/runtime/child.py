"""The first thing a rank process runs: tie its life to its owner's, then become the entry module.

    owner (gang thread) ──spawn──▶ python -m rayplane.runtime.child JOB/RANK ENTRY --fd N ──▶ ENTRY as __main__, with --fd N

The kernel kills the rank when the thread that spawned it ends (prctl(2), PR_SET_PDEATHSIG), also while the entry is still importing.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import socket
import struct
import sys

PR_SET_PDEATHSIG = 1
OWNER_GONE = 70


def die_with_parent() -> None:
    """From here on the kernel kills this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tie_to_owner(fd: int) -> None:
    """Die with the owner; end at once when it died before this call. The socket pair tells who made it: the owner."""
    die_with_parent()
    with socket.socket(fileno=os.dup(fd)) as line:
        owner, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if os.getppid() != owner:
        os._exit(OWNER_GONE)


def main() -> None:
    """`argv`: a label for process listings, the entry module, --fd, N."""
    _, _, entry, flag, fd = sys.argv
    tie_to_owner(int(fd))
    sys.argv = [entry, flag, fd]
    runpy.run_module(entry, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
