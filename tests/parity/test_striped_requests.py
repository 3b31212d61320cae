"""Over cp every note reaches the rank that draws: also with steps of which no token is drawn, and those of which it computes none."""

import pytest
from serving_job import save_model

from rayplane.serve.notes import decode
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Cancel, Submit
from rayplane.spec.layout import Layout
from rayplane.spec.model_section import ModelSection
from tests.parity.replica import Answered, Replica

TOKENS = 72
PROMPTS = [tuple((5 * i + 7 * j) % 128 for j in range(length)) for i, length in enumerate((3, 140, 1, 40, 100, 17, 9, 33))]
CANCELLED = {2: 3, 1: 4, 6: 9, 3: 9}
"""By request, the step after which nobody waits for it any more."""
LATE = {9: (8, 10), 12: (9, 11)}
"""By step, two requests that come after it: prompts like the first ones, longer by a token."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return ModelSection(path=str(folder))


def submit(number: int) -> Submit:
    prompt = PROMPTS[number] if number < len(PROMPTS) else (*PROMPTS[number - len(PROMPTS)], 7)
    params = SamplingParams(temperature=number % 3 / 2, seed=number, max_tokens=TOKENS, ignore_eos=True, frequency_penalty=0.1)
    return Submit(number, prompt, params)


@pytest.mark.parametrize("layout", [Layout(cp=2), Layout(cp=2, tp=2), Layout(cp=3), Layout(cp=2, pp=2)], ids=str)
def test_no_note_is_lost_and_no_answer_changed(layout, model):
    serial = Replica(Layout(), "fp32", model)
    late = [number for pair in LATE.values() for number in pair]
    expected = serial.answers(serial.engine(), [submit(i) for i in (*range(len(PROMPTS)), *late)])
    serial.close()

    replica = Replica(layout, "fp32", model)
    engine = replica.engine(chunk=16, num_blocks=16, max_context=240, max_batch_tokens=32)
    steps, told, next_step = [], [0], engine.next_step

    def noted(now_s):
        step = next_step(now_s)
        if step is not None:
            steps.append(step)
        return step

    def after(answers):
        told[0] += 1
        for number in (n for n, step in CANCELLED.items() if step == told[0]):
            engine.receive(0, Cancel(number), 0.0)
        for number in LATE.get(told[0], ()):
            answers[number] = Answered()
            assert engine.receive(0, submit(number), 0.0) == []
        if not engine._flights:
            (sampler,) = (rank._sampler for rank in replica.ranks.values() if rank.draws)
            assert set(sampler._known) == engine._known | set(engine._ended)

    engine.next_step = noted
    given = replica.answers(engine, [submit(i) for i in range(len(PROMPTS))], after)
    replica.close()

    for number, answer in given.items():
        right = expected[number].tokens
        assert answer.tokens == (right[: len(answer.tokens)] if number in CANCELLED else right), number
    assert all(len(given[number].tokens) < TOKENS for number in CANCELLED)
    assert engine.pulse(0.0).preemptions > 0
    assert any(step.notes and not len(step.rows) for step in steps), "a note came with a step of which nothing is drawn"
    assert {number for step in steps for number in decode(step.notes).ended}, "the rank that draws was told of ends"
