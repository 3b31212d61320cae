"""What a rank sent: bytes, calls and seconds by mesh axis and operation.

Bytes are those that leave the rank. On gloo they are counted where a buffer is handed to the transport; on NCCL, which moves them
itself, they are the ring's closed form:

    all-reduce       2 N (p - 1) / p         all-gather, reduce-scatter    N (p - 1) / p      of the whole tensor's N bytes
    send             N                       broadcast                     N (root only, to each peer)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Entry:
    """Totals of one operation on one axis. `seconds` is the time the caller was kept waiting."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Totals by (axis, operation)."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def add(self, axis: str, op: str, num_bytes: int, seconds: float, calls: int = 1) -> None:
        """Add to one operation's totals."""
        entry = self.entries.setdefault((axis, op), Entry())
        entry.calls += calls
        entry.bytes += num_bytes
        entry.seconds += seconds

    def bytes_by_axis(self) -> dict[str, int]:
        """Bytes sent by mesh axis, over all operations."""
        out: dict[str, int] = {}
        for (axis, _), entry in self.entries.items():
            out[axis] = out.get(axis, 0) + entry.bytes
        return out

    def bytes_by_operation(self, axis: str) -> dict[str, int]:
        """Bytes sent on an axis by operation."""
        return {op: entry.bytes for (a, op), entry in self.entries.items() if a == axis}

    def calls(self, axis: str, op: str) -> int:
        """How often an operation ran on an axis."""
        return self.entries.get((axis, op), Entry()).calls

    def bytes(self, axis: str, op: str) -> int:
        """Bytes that an operation sent on an axis."""
        return self.entries.get((axis, op), Entry()).bytes

    def reset(self) -> None:
        """Start again at zero."""
        self.entries.clear()
