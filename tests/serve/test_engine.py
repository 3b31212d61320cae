"""Frames in, steps out, frames back: with ranks that have a model without weights."""

from collections import defaultdict

import pytest
from fake_model import FakeRanks, continuation

from rayplane.errors import RequestError
from rayplane.serve.engine import Engine
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.notes import Notes, decode, encode
from rayplane.serve.request import FinishReason
from rayplane.serve.sampling import Grammar, SamplingParams, Structure
from rayplane.serve.wire import Cancel, Refused, Started, Submit, Tokens

LIMITS = SchedulerLimits(num_blocks=40, max_context=64, block_size=4, max_sequences=8, max_batch_tokens=16, prefill_tokens=16)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def closed(structure):
    """Takes whatever closes its parentheses."""
    if structure.source.count("(") != structure.source.count(")"):
        raise RequestError("structure", f"{structure.source} is no expression")


class Replica:
    """An engine with its ranks, and what its connections have heard."""

    def __init__(self, limits=LIMITS, end_tokens=frozenset()):
        self.engine, self.ranks = Engine(limits, end_tokens, closed), FakeRanks(limits)
        self.heard, self.notes, self.now_s = defaultdict(list), [], 0.0

    def hear(self, letters):
        for connection, frame in letters:
            self.heard[connection].append(frame)

    def say(self, connection, frame):
        self.hear(self.engine.receive(connection, frame, self.now_s))

    def step(self):
        """One step there and back."""
        self.now_s += 1.0
        step = self.engine.next_step(self.now_s)
        if step is not None:
            self.notes.append(decode(step.notes))
            self.ranks.submit(step)
            self.now_s += 0.5
            self.hear(self.engine.done(self.ranks.result(), self.now_s))
        return step

    def run(self):
        while self.engine.has_work:
            assert self.step() is not None
        return self

    def told(self, connection, number):
        """All tokens of a request, and how it ended."""
        mine = [p for frame in self.heard[connection] if isinstance(frame, Tokens) for p in frame.progress if p.id == number]
        assert [p.finish for p in mine[:-1]] == [None] * (len(mine) - 1)
        return [t for p in mine for t in p.tokens], mine[-1].finish if mine else None


def test_a_structure_that_cannot_be_held_to_is_refused_before_any_rank_meets_it():
    replica = Replica()
    replica.say(1, Submit(1, (1, 2), SamplingParams(structure=Structure(Grammar.REGEX, "("))))
    assert replica.heard[1] == [Refused(1, "structure: ( is no expression", "structure")]
    assert not replica.engine.has_work and replica.engine.next_step(0.0) is None
    replica.say(1, Submit(2, (1, 2), SamplingParams(structure=Structure(Grammar.REGEX, "a"), max_tokens=2, ignore_eos=True)))
    assert len(replica.run().told(1, 2)[0]) == 2


def test_each_connection_hears_of_its_own_requests():
    replica = Replica()
    prompts = {(1, 1): (1, 2, 3), (1, 2): (4, 5), (2, 1): (6, 7, 8, 9, 10)}
    for (connection, number), prompt in prompts.items():
        replica.say(connection, Submit(number, prompt, GREEDY))
    replica.run()
    for (connection, number), prompt in prompts.items():
        assert replica.told(connection, number) == (continuation(prompt, 6), FinishReason.LENGTH)
    frames = replica.heard[1]
    assert all(isinstance(f, Tokens) for f in frames) and len(frames) == 6, "one frame a step"


def test_a_request_is_told_to_have_started_with_how_long_it_waited():
    replica = Replica()
    replica.say(1, Submit(1, (1, 2, 3), GREEDY))
    replica.step()
    (frame,) = replica.heard[1]
    assert frame.started == (Started(1, 0, 1.0),)
    replica.step()
    assert replica.heard[1][1].started == ()


def test_an_end_token_ends_a_text_and_is_told():
    tokens = continuation((1, 2, 3), 6)
    replica = Replica(end_tokens=frozenset({tokens[2]}))
    replica.say(1, Submit(1, (1, 2, 3), SamplingParams(temperature=0, max_tokens=6)))
    assert replica.run().told(1, 1) == (tokens[: tokens.index(tokens[2]) + 1], FinishReason.STOP)


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_what_nobody_waits_for_any_more_ends_and_is_not_told(leave):
    replica = Replica()
    replica.say(1, Submit(1, (1, 2, 3), GREEDY))
    replica.say(2, Submit(1, (4, 5), GREEDY))
    replica.step()
    replica.step()
    if leave == "cancel":
        replica.say(1, Cancel(1))
    else:
        replica.engine.closed(1)
    told = len(replica.heard[1])
    replica.run()
    assert len(replica.heard[1]) == told
    assert replica.told(2, 1) == (continuation((4, 5), 6), FinishReason.LENGTH)
    assert replica.engine.pulse(0.0).kv_used == 0


def test_a_request_that_cannot_be_served_is_refused_by_its_field():
    replica = Replica()
    replica.say(1, Submit(1, tuple(range(64)), GREEDY))
    (refused,) = replica.heard[1]
    assert isinstance(refused, Refused) and (refused.id, refused.field) == (1, "prompt")
    assert not replica.engine.has_work


def test_a_deadline_ends_a_request_with_what_it_has():
    replica = Replica()
    replica.say(1, Submit(1, (1, 2, 3), GREEDY, deadline_s=4.0))
    replica.step()
    replica.step()
    replica.hear(replica.engine.expire(5.0))
    assert replica.told(1, 1) == (continuation((1, 2, 3), 2), FinishReason.DEADLINE)


def test_the_drawing_rank_is_told_of_each_sequence_once_and_when_it_has_ended():
    replica = Replica()
    replica.say(1, Submit(1, tuple(range(1, 20)), GREEDY))
    replica.say(1, Submit(2, (3, 4), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), generated=(7,)))
    replica.run()
    replica.say(1, Submit(3, (1,), GREEDY))
    replica.run()
    admitted = [a for notes in replica.notes for a in notes.admissions]
    assert [(a.prompt, a.generated) for a in admitted] == [((tuple(range(1, 20))), ()), ((3, 4), (7,)), ((1,), ())]
    ended = [number for notes in replica.notes for number in notes.ended]
    assert sorted(ended) == sorted(a.number for a in admitted[:2]), "the last one ends when another step comes"


def test_a_pulse_tells_how_old_the_oldest_step_is_and_how_long_it_should_take():
    replica = Replica()
    replica.say(1, Submit(1, (1, 2, 3, 4), GREEDY))
    replica.step()
    assert (replica.engine.pulse(9.0).oldest_s, replica.engine.oldest_s) == (0.0, None)
    replica.engine.next_step(2.0)
    pulse = replica.engine.pulse(5.0)
    assert (pulse.oldest_s, pulse.running, pulse.step) == (3.0, 1, 1)
    assert pulse.expected_s == pytest.approx(0.5 / 4)
    assert replica.engine.oldest_s == 2.0


def test_notes_are_what_was_noted():
    params = SamplingParams(seed=3, stop_tokens=frozenset({1, 2}), logit_bias=((1, 2.0),), structure=Structure(Grammar.REGEX, "a+"))
    replica = Replica()
    replica.say(1, Submit(1, (1, 2), params))
    replica.step()
    ((admission,),) = [n.admissions for n in replica.notes]
    assert (admission.params, set(admission.end_tokens)) == (params, {1, 2})
    assert decode(encode(Notes((admission,), (4,)))) == Notes((admission,), (4,))
    assert decode(b"") == Notes()


def test_a_step_in_flight_of_a_request_that_has_gone_is_dropped():
    replica = Replica()
    replica.say(1, Submit(1, (1, 2, 3), GREEDY))
    step = replica.engine.next_step(1.0)
    replica.ranks.submit(step)
    replica.say(1, Cancel(1))
    assert replica.engine.done(replica.ranks.result(), 2.0) == []
    assert not replica.engine.has_work
