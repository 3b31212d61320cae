"""SIGTERM and Ctrl-C become requests to stop: the first drains, the second kills, the third does not wait for anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rayplane.control.stop import Stop

PATIENCE = 2


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """While inside, signals are counted. Enter it again after a library has installed handlers of its own."""

    def ask(_signum: int, _frame: FrameType | None) -> None:
        if stop.request() > PATIENCE:
            raise KeyboardInterrupt

    before = {signum: signal.signal(signum, ask) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
