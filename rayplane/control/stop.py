"""Requests to stop a job, counted: the first drains it, the second kills it.

A counter and not a threading.Event: its lock could be held by the very thread that the signal handler interrupts.
"""

from __future__ import annotations


class Stop:
    """Asked by signal handlers, taken by the controller."""

    def __init__(self) -> None:
        self._asked = 0
        self._taken = 0

    def request(self) -> int:
        """Ask once more; how often it has been asked."""
        self._asked += 1
        return self._asked

    def asked(self) -> bool:
        """Whether there is a request that has not been taken."""
        return self._taken != self._asked

    def take(self) -> bool:
        """Whether there was a request that had not been taken; takes it."""
        if not self.asked():
            return False
        self._taken += 1
        return True
