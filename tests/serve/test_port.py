"""Sockets of an engine: who is let in, what arrives, what is sent, and signs of life."""

import contextlib
import socket
import time

import pytest

from rayplane.serve.frames import TO_INGRESS, FrameReader, encode
from rayplane.serve.port import Port
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Cancel, Hello, Leave, Pulse, Submit, Tokens, Welcome

WELCOME = Welcome(replica="r0", model="m", max_context=64, block=4, kv_tokens=160, max_sequences=8)
PULSE = Pulse(step=3, oldest_s=0.0, expected_s=0.1, waiting=0, running=1, kv_used=4, kv_tokens=160, preemptions=0)


class Ingress:
    """A connection to a port."""

    def __init__(self, port, secret="s"):
        host, number = port.address.rsplit(":", 1)
        self.line = socket.create_connection((host, int(number)), 5)
        self.reader, self.frames = FrameReader(TO_INGRESS), []
        self.say(Hello(secret, "test"))

    def say(self, frame):
        self.line.sendall(encode(frame))

    def hear(self, kind):
        """The next frame of a kind; None when the other side has closed."""
        while True:
            for i, frame in enumerate(self.frames):
                if isinstance(frame, kind):
                    return self.frames.pop(i)
            try:
                data = self.line.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.frames += self.reader.feed(data)


@pytest.fixture
def port():
    made = Port("127.0.0.1", "s", WELCOME)
    yield made
    made.close()


def arrivals(port, count):
    """So many, waiting for them."""
    found, end_s = [], time.monotonic() + 5
    while len(found) < count and time.monotonic() < end_s:
        found += port.arrivals()
        time.sleep(0.005)
    return found


def test_an_ingress_with_the_secret_is_welcomed_and_heard(port):
    ingress = Ingress(port)
    assert ingress.hear(Welcome) == WELCOME
    ingress.say(Submit(1, (1, 2), SamplingParams(seed=4)))
    ingress.say(Cancel(1))
    assert arrivals(port, 2) == [(1, Submit(1, (1, 2), SamplingParams(seed=4))), (1, Cancel(1))]


def test_one_without_it_is_turned_away_and_never_heard(port):
    stranger = Ingress(port, "wrong")
    assert stranger.hear(Welcome) is None
    assert port.arrivals() == []


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", encode(Cancel(1)), b"\x00\x00\x00\x02\xff\xff", b"\xff" * 64])
def test_whoever_says_anything_else_first_is_turned_away(port, said):
    host, number = port.address.rsplit(":", 1)
    with socket.create_connection((host, int(number)), 5) as line:
        line.sendall(said)
        line.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(10) == b""
    assert port.arrivals() == []
    assert Ingress(port).hear(Welcome) == WELCOME


def test_garbage_from_a_friend_ends_its_connection_and_the_engine_is_told(port):
    ingress = Ingress(port)
    ingress.hear(Welcome)
    ingress.line.sendall(b"\xff" * 64)
    assert ingress.hear(Tokens) is None
    assert arrivals(port, 1) == [(1, None)]


def test_frames_go_to_their_connection_and_a_closed_one_does_not_matter(port):
    one, two = Ingress(port), Ingress(port)
    for ingress in (one, two):
        ingress.hear(Welcome)
        ingress.say(Cancel(0))
    first, second = (connection for connection, _ in arrivals(port, 2))
    two.line.close()
    assert arrivals(port, 1) in ([(first, None)], [(second, None)])
    port.send([(first, Tokens(())), (second, Tokens(())), (99, Tokens(()))])
    assert one.hear(Tokens) == Tokens(())


def test_pulses_tell_how_old_the_oldest_step_is_by_now(port):
    ingress = Ingress(port)
    port.stand(PULSE, time.monotonic() - 10)
    first = ingress.hear(Pulse)
    assert 10 <= first.oldest_s < 12
    assert ingress.hear(Pulse).oldest_s > first.oldest_s
    port.stand(PULSE, None)
    time.sleep(0.3)
    ingress.frames.clear()
    assert ingress.hear(Pulse).oldest_s == 0.0 or ingress.hear(Pulse).oldest_s == 0.0


def test_a_port_that_closes_says_so_first():
    port = Port("127.0.0.1", "s", WELCOME)
    ingress = Ingress(port)
    ingress.hear(Welcome)
    port.leave()
    assert ingress.hear(Leave) == Leave()
    port.close()
    assert ingress.hear(Leave) is None
