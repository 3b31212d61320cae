import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

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

RECALLED = """
import sys, time
from rayplane.telemetry.channel import Channel, Recalled
channel = Channel.open(int(sys.argv[1]), lambda: channel.send({"type": "left"}))
for _ in range(2):
    channel.send({"type": "joined", "rank": channel.expect("join", 5)["rank"], "draining": channel.draining})
    try:
        channel.expect("never", 5)
    except Recalled:
        channel.send({"type": "recalled", "is": channel.recalled, "draining": channel.draining})
    channel.park()
time.sleep(600)
"""
NEVER_LEAVES = """
import sys, time
from rayplane.telemetry.channel import Channel
channel = Channel.open(int(sys.argv[1]))
time.sleep(600)
"""
SEVERS = """
import socket, threading
from rayplane.comm.sever import sever
server = socket.create_server(("127.0.0.1", 0))
def connected():
    ours = socket.create_connection(server.getsockname())
    return ours, server.accept()[0]
near, far = connected()
pair = socket.socketpair()
got = []
waits = threading.Thread(target=lambda: got.append(near.recv(1)))
waits.start()
sever()
waits.join(5)
print(got, far.recv(1))
again, other = connected()
again.send(b"x")
pair[0].send(b"y")
print(other.recv(1), pair[1].recv(1))
"""


class Owner:
    """The other end of a rank's channel."""

    def __init__(self, rank: str = RANK) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.rank = subprocess.Popen([sys.executable, "-c", rank, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
        self.socket.settimeout(10)
        self.lines = self.socket.makefile("rb")

    def read(self) -> dict[str, object]:
        message: dict[str, object] = json.loads(self.lines.readline())
        return message

    def close(self) -> None:
        self.rank.kill()
        self.rank.wait()
        self.lines.close()
        self.socket.close()


@pytest.fixture
def owner() -> Iterator[Owner]:
    with closing(Owner()) as owner:
        yield owner


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


def test_recalled_rank_leaves_and_forgets_what_was_said_of_the_attempt() -> None:
    with closing(Owner(RECALLED)) as owner:
        for rank in (1, 2):
            owner.socket.sendall(b'{"type": "join", "rank": %d}\n' % rank)
            assert owner.read() == {"type": "joined", "rank": rank, "draining": False}
            owner.socket.sendall(b'{"type": "drain"}\n{"type": "join", "rank": 9}\n{"type": "recall"}\n')
            said = [owner.read() for _ in range(3)]
            assert {"type": "left"} in said
            assert {"type": "recalled", "is": True, "draining": False} in said
            assert said[-1] == {"type": "parked"}


def test_recall_ends_a_rank_that_has_not_said_how_it_leaves() -> None:
    with closing(Owner(NEVER_LEAVES)) as owner:
        owner.socket.sendall(b'{"type": "recall"}\n')
        assert owner.rank.wait(5) == OWNER_GONE


def test_severing_frees_who_waits_here_and_there_and_leaves_other_sockets_alone() -> None:
    said = subprocess.run([sys.executable, "-c", SEVERS], capture_output=True, text=True, timeout=20)
    assert said.stdout.splitlines() == ["[b''] b''", "b'x' b'y'"], said.stderr
