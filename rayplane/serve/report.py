"""What a rank tells its owner of its steps: their number, their tokens, and where their time went, once every REPORT_S.

    {"type": "served", "rank", "replica", "stage", "steps", "tokens", "wall_s", "phases": {"forward", "recv_wait", "host", …}}

The phases sum to the wall time since the last report, idle time being `recv_wait` (PhaseClock).
"""

from __future__ import annotations

import time

from rayplane.comm.mesh import Mesh
from rayplane.telemetry.channel import Channel

REPORT_S = 1.0


class Reporter:
    """Counts one rank's steps."""

    def __init__(self, mesh: Mesh, channel: Channel, replica: str):
        self._mesh, self._channel, self._replica = mesh, channel, replica
        self.steps = 0
        self._steps, self._tokens = 0, 0
        self._due_s = time.monotonic() + REPORT_S
        mesh.clock.start()

    def stepped(self, tokens: int) -> None:
        """A step of so many tokens is done on this rank."""
        self.steps, self._steps, self._tokens = self.steps + 1, self._steps + 1, self._tokens + tokens
        if time.monotonic() >= self._due_s:
            self.tell()

    def idle(self) -> None:
        """Nothing is left to do: what was not told yet is told now, for the order to end may come before the next step."""
        if self._steps:
            self.tell()

    def tell(self) -> None:
        """Report now, whatever has happened since the last time."""
        phases = self._mesh.clock.take()
        self._channel.send(
            {
                "type": "served",
                "rank": self._mesh.rank,
                "replica": self._replica,
                "stage": self._mesh.coord.pp,
                "steps": self._steps,
                "tokens": self._tokens,
                "wall_s": sum(phases.values()),
                "phases": phases,
                "comm_bytes": self._mesh.ledger.bytes_by_axis(),
            }
        )
        self._mesh.ledger.reset()
        self._steps, self._tokens, self._due_s = 0, 0, time.monotonic() + REPORT_S
