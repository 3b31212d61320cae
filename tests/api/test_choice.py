"""An answer is the same whether its tokens come one at a time or several in a step, as right guesses make them."""

import pytest

from rayplane.api.choice import Choice
from rayplane.api.detokenize import ByteDecoder
from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.request import FinishReason
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.stops import StopStrings
from rayplane.serve.wire import Progress

TEXT = b"one two\nthree two four"
BYTES = [bytes([i]) for i in range(256)]


class Counted:
    """A stopwatch that only counts."""

    def __init__(self):
        self.count, self.how = 0, ""

    def tokens(self, count):
        self.count += count

    def ended(self, how):
        self.how = how


def read(sizes, stops, include=False, finish=FinishReason.LENGTH, **params):
    """(text, ids that were scored, tokens, finish, reason, tokens timed) when so many tokens come in each step."""
    watch = Counted()
    choice = Choice(SamplingParams(**params), ByteDecoder(BYTES), StopStrings(stops, include), watch, lambda: None)
    at = 0
    for size in sizes:
        tokens = tuple(TEXT[at : at + size])
        at += size
        scored = tuple(TokenLogprob(-float(token)) for token in tokens)
        choice.progress(Progress(0, tokens, finish if at >= len(TEXT) else None, scored))
    delta = choice.take()
    assert [scored.scored.logprob for scored in delta.tokens] == [-float(scored.id) for scored in delta.tokens]
    return delta.text, [scored.id for scored in delta.tokens], choice.num_tokens, delta.finish, delta.stop_reason, watch.count


@pytest.mark.parametrize("sizes", [[3] * 8, [5] * 5, [22], [1, 8, 13]], ids=str)
@pytest.mark.parametrize(
    "asked",
    [
        {"stops": ()},
        {"stops": ("\n",)},
        {"stops": ("two",)},
        {"stops": ("two",), "include": True},
        {"stops": ("two",), "min_tokens": 8},
        {"stops": ("two four!", "w")},
        {"stops": (), "finish": FinishReason.STOP, "stop_tokens": frozenset({TEXT[-1]})},
        {"stops": ("four",), "finish": FinishReason.STOP, "stop_tokens": frozenset({TEXT[-1]})},
    ],
    ids=str,
)
def test_several_tokens_in_a_step_read_as_one_after_the_other(asked, sizes):
    assert read(sizes, **asked) == read([1] * len(TEXT), **asked)


def test_tokens_behind_a_stop_string_belong_to_no_answer():
    assert read([22], ("two",)) == ("one ", list(b"one two"), 7, "stop", "two", 7)
