import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rayplane.telemetry.channel import OWNER_GONE

RANK = """
import os, sys, time
from rayplane.telemetry.channel import Channel
channel = Channel.open(int(sys.argv[1]))
channel.send({"type": "got", "what": channel.expect("host_store", 5)})
channel.send({"type": "got", "what": channel.expect(("store", "join"), 5)})
try:
    channel.expect(("join", "other"), 0.05)
except TimeoutError as error:
    channel.send({"type": "late", "what": str(error), "inherited": os.get_inheritable(int(sys.argv[1])), "draining": channel.draining})
while not channel.draining:
    time.sleep(0.005)
channel.send({"type": "draining"})
time.sleep(600)
"""


class Owner:
    """The other end of a rank's channel."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.rank = subprocess.Popen([sys.executable, "-c", RANK, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
        self.socket.settimeout(10)
        self.lines = self.socket.makefile("rb")

    def read(self) -> dict[str, object]:
        message: dict[str, object] = json.loads(self.lines.readline())
        return message


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.rank.kill()
    owner.rank.wait()
    owner.lines.close()
    owner.socket.close()


def test_rank_takes_what_it_expects_learns_of_drains_and_dies_with_its_owner(owner: Owner) -> None:
    owner.socket.sendall(b'{"type": "join", "rank": 3}\n{"type": "ho')
    owner.socket.sendall(b'st_store"}\n')
    assert owner.read()["what"] == {"type": "host_store"}
    assert owner.read()["what"] == {"type": "join", "rank": 3}
    late = owner.read()
    assert late == {"type": "late", "what": "the owner sent no join or other within 0.05 s", "inherited": False, "draining": False}
    owner.socket.sendall(b'{"type": "drain"}\n')
    assert owner.read() == {"type": "draining"}
    owner.socket.shutdown(socket.SHUT_RDWR)
    assert owner.rank.wait(1) == OWNER_GONE


def test_rank_ends_when_its_owner_talks_nonsense(owner: Owner) -> None:
    owner.socket.sendall(b"nonsense\n")
    assert owner.rank.wait(5) == OWNER_GONE
