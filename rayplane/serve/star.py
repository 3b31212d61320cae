"""The control of a replica's ranks: rank 0 sends every step to all others, the rank that draws sends what it drew back.

    rank 0 ──step──▶ rank 1, 2, …        activations go from stage to stage beside it
           ◀─drawn── the last stage

Plain connections, rank to rank: a message takes some ten microseconds, who waits for one needs no processor, and a rank that dies
closes its own, which frees the others at once.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterable
from typing import Any

import msgpack

from rayplane.comm.mesh import Mesh
from rayplane.model.shared import told
from rayplane.serve.outputs import Sampled, TokenLogprob

LENGTH = struct.Struct("<Q")
HELLO = struct.Struct("<32sQ")
CONNECT_S = 60.0


class Hub:
    """Rank 0's end."""

    def __init__(self, peers: dict[int, socket.socket], drawing: int):
        self._peers = peers
        self._drawing = peers.get(drawing)

    @property
    def results(self) -> socket.socket | None:
        """What to wait for with select(2); None where rank 0 draws itself."""
        return self._drawing

    def send(self, step: bytes | bytearray) -> None:
        """A step for all; ranks that are busy find it when they are done. OSError where one is gone."""
        for peer in self._peers.values():
            peer.sendall(LENGTH.pack(len(step)))
            peer.sendall(step)

    def receive(self) -> list[Sampled]:
        """What was drawn in the oldest step. ConnectionError where the rank is gone."""
        assert self._drawing is not None
        return [Sampled(tuple(tokens), _logprobs(logprobs)) for tokens, logprobs in msgpack.unpackb(_message(self._drawing))]

    def close(self) -> None:
        """Let the others end."""
        for peer in self._peers.values():
            peer.close()


class Spoke:
    """The end of any other rank."""

    def __init__(self, line: socket.socket):
        self._line = line

    def step(self) -> bytearray | None:
        """The next step; None when rank 0 has closed."""
        try:
            return _message(self._line)
        except ConnectionError:
            return None

    def send(self, drawn: Iterable[Sampled]) -> None:
        """What was drawn in a step."""
        packed = msgpack.packb([(s.tokens, s.logprobs) for s in drawn])
        self._line.sendall(LENGTH.pack(len(packed)) + packed)


def join(mesh: Mesh, host: str, drawing: int) -> Hub | Spoke:
    """Connect the ranks of a mesh; all call it alike. `host` is this rank's, as its peers reach it."""
    if mesh.layout.size == 1:
        return Hub({}, drawing)
    if mesh.rank == 0:
        with socket.create_server((host, 0)) as server:
            key = secrets.token_bytes(16).hex()
            told(mesh.world, f"{host} {server.getsockname()[1]} {key}")
            server.settimeout(CONNECT_S)
            return Hub(_accept(server, key, mesh.layout.size - 1), drawing)
    address, port, key = told(mesh.world, "")[0].split()
    line = socket.create_connection((address, int(port)), CONNECT_S)
    _at_once(line)
    line.sendall(HELLO.pack(key.encode(), mesh.rank))
    return Spoke(line)


def _accept(server: socket.socket, key: str, count: int) -> dict[int, socket.socket]:
    """Ranks by number; others are turned away."""
    peers: dict[int, socket.socket] = {}
    while len(peers) < count:
        line, _ = server.accept()
        line.settimeout(CONNECT_S)
        found, rank = HELLO.unpack(_exactly(line, HELLO.size))
        if not secrets.compare_digest(found, key.encode()):
            line.close()
            continue
        _at_once(line)
        peers[rank] = line
    return peers


def _logprobs(packed: list[Any] | None) -> tuple[TokenLogprob, ...] | None:
    return None if packed is None else tuple(TokenLogprob(value, tuple(map(tuple, top))) for value, top in packed)


def _at_once(line: socket.socket) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.settimeout(None)


def _message(line: socket.socket) -> bytearray:
    (length,) = LENGTH.unpack(_exactly(line, LENGTH.size))
    return _exactly(line, length)


def _exactly(line: socket.socket, length: int) -> bytearray:
    """So many bytes. ConnectionError where the other side closes first."""
    out = bytearray(length)
    view = memoryview(out)
    while view:
        count = line.recv_into(view)
        if not count:
            raise ConnectionError("the other rank has closed its connection")
        view = view[count:]
    return out
