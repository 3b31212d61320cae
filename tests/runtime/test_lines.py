import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.runtime.lines import MAX_LINE_BYTES, LineBuffer, StreamError

MESSAGES = st.lists(st.fixed_dictionaries({"type": st.text(max_size=9), "x": st.integers() | st.text()}), max_size=5)


@given(MESSAGES, st.data())
def test_messages_do_not_depend_on_how_the_stream_is_cut(messages: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(json.dumps(m).encode() + b"\n" for m in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    buffer, got = LineBuffer(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += buffer.feed(stream[start:end])
    assert got == messages


@pytest.mark.parametrize("line", [b"", b"nonsense", b"[1]", b"{}", b'{"type": 3}', b"\xff\xfe"])
def test_what_is_no_message_is_an_error(line: bytes) -> None:
    with pytest.raises(StreamError):
        LineBuffer().feed(line + b"\n")


def test_endless_line_is_an_error() -> None:
    buffer = LineBuffer()
    with pytest.raises(StreamError, match="longer than"):
        for _ in range(MAX_LINE_BYTES // 2**20 + 1):
            buffer.feed(b"x" * 2**20)
