"""Frames survive the way over a socket, however it cuts them, and nothing else is taken for one."""

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.serve.frames import KINDS, LENGTH, MAX_FRAME_BYTES, TO_ENGINE, TO_INGRESS, FrameError, FrameReader, encode
from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.request import FinishReason
from rayplane.serve.sampling import Grammar, SamplingParams, Structure
from rayplane.serve.wire import Cancel, Hello, Leave, Progress, Pulse, Refused, Started, Submit, Tokens, Welcome, admits

PARAMS = SamplingParams(
    temperature=0.5,
    seed=-(2**63),
    logit_bias=((3, -100.0),),
    logprobs=2,
    stop_tokens=frozenset({7, 2}),
    structure=Structure(Grammar.REGEX, "a+"),
)
FRAMES = [
    Hello("secret", "ingress-0"),
    Welcome("r0", "m", 4096, 16, 100_000, 64),
    Submit(1, (1, 2, 3), PARAMS, -5, 2.5, "salt", (4, 5), 9),
    Submit(2, (1,), SamplingParams()),
    Cancel(2**40),
    Leave(),
    Tokens(
        (Progress(1, (5, 6), FinishReason.STOP, (TokenLogprob(-0.1, ((5, -0.1),)), TokenLogprob(float("-inf")))), Progress(2, ())),
        (Started(1, 3, 0.5),),
    ),
    Refused(1, "no", "prompt"),
    Pulse(10, 0.5, 0.02, 1, 2, 300, 4000, 0, 40, 25),
]
ids = st.integers(0, 2**32)
progress = st.builds(Progress, ids, st.lists(ids, max_size=3).map(tuple), st.sampled_from([None, *FinishReason]), st.none())
sendable = st.one_of(
    st.sampled_from(FRAMES),
    st.builds(Tokens, st.lists(progress, max_size=5).map(tuple), st.just(())),
    st.builds(Submit, ids, st.lists(ids, max_size=40).map(tuple), st.just(PARAMS), deadline_s=st.none() | st.floats(0, 1e6)),
    st.builds(Refused, ids, st.text(), st.text()),
)


def read(data: bytes, kinds=frozenset(KINDS)):
    return FrameReader(kinds).feed(data)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: type(f).__name__)
def test_a_frame_arrives_as_it_was_sent(frame):
    assert read(encode(frame)) == [frame]


def test_every_kind_is_sent_one_way_or_both():
    assert TO_ENGINE | TO_INGRESS == frozenset(KINDS) == {type(frame) for frame in FRAMES}


@given(st.lists(sendable, max_size=6), st.lists(st.integers(1, 60), min_size=1))
@settings(max_examples=60, deadline=None)
def test_frames_arrive_however_the_stream_cuts_them(frames, cuts):
    data, reader, out = b"".join(map(encode, frames)), FrameReader(frozenset(KINDS)), []
    for size in cuts * (len(data) // sum(cuts) + 1):
        piece, data = data[:size], data[size:]
        out += reader.feed(piece)
    assert out == frames


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused_or_waited_for_and_nothing_else_happens(noise):
    with contextlib.suppress(FrameError):
        assert read(noise) == []
    with pytest.raises(FrameError):
        read(LENGTH.pack(len(noise)) + noise)


@given(sendable, st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_frame_is_a_frame_error_or_another_frame(frame, data):
    body = bytearray(encode(frame))
    place = data.draw(st.integers(LENGTH.size, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        assert all(type(f) in KINDS for f in read(bytes(body)))


def wrapped(value) -> bytes:
    body = msgpack.packb(value)
    return LENGTH.pack(len(body)) + body


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([99, {}], "not a kind"),
        ([-1, {}], "not a kind"),
        (["0", {}], "not a kind"),
        ({"kind": 1}, "not a kind"),
        ([3, {"id": "x"}], "Cancel.id"),
        ([3, {"id": 1, "more": 2}], "no field 'more'"),
        ([2, {"id": 1, "prompt": [1], "params": {"temperature": -1}}], "temperature"),
        ([2, {"id": 1, "prompt": ["x"], "params": {}}], "Submit.prompt.0"),
    ],
)
def test_a_frame_with_a_fault_says_which(value, message):
    with pytest.raises(FrameError, match=message):
        read(wrapped(value))


def test_nobody_is_made_to_hold_a_giant_frame():
    with pytest.raises(FrameError, match=f"most is {MAX_FRAME_BYTES}"):
        read(LENGTH.pack(MAX_FRAME_BYTES + 1))
    with pytest.raises(FrameError, match="the most is"):
        encode(Refused(1, "x" * MAX_FRAME_BYTES))


def test_deep_nesting_is_refused():
    with pytest.raises(FrameError):
        read(LENGTH.pack(2001) + b"\x91" * 2000 + b"\x90")


def test_each_side_takes_only_what_the_other_may_send():
    with pytest.raises(FrameError, match="Pulse"):
        read(encode(FRAMES[-1]), TO_ENGINE)
    with pytest.raises(FrameError, match="Submit"):
        read(encode(FRAMES[2]), TO_INGRESS)


def test_only_the_right_secret_admits():
    assert admits(Hello("sésame", "i"), "sésame")
    assert not admits(Hello("sesame", "i"), "sésame")
    assert not admits(Hello("", "i"), "sésame")
