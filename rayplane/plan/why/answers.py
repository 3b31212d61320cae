"""The questions that a parallel runtime must answer (`docs/parallelism.md`), answered for one model on one cluster.

1  what tp sends            5  what a ring sends         9  what serving dp is       12  what cp cuts
2  how attention is cut     6  when communication binds  10 what a pipe costs        13  in which order axes grow
3  is more tp faster        7  what dp buys              11 how imbalance is mended
4  what an all-reduce is    8  what does not fit
"""

from __future__ import annotations

from collections.abc import Callable

from rayplane.plan.why import layer_answers, stage_answers
from rayplane.plan.why.explanation import Answer
from rayplane.plan.why.facts import Facts

QUESTIONS: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("What does tensor parallelism send, and when?", layer_answers.what_tp_sends),
    ("How is attention cut?", layer_answers.how_attention_is_cut),
    ("Is more tensor parallelism always faster?", layer_answers.is_more_tp_faster),
    ("What is an all-reduce made of?", layer_answers.what_an_all_reduce_is),
    ("How many bytes does a ring send?", layer_answers.what_a_ring_sends),
    ("When is a layer bound by communication?", layer_answers.when_communication_binds),
    ("What does data parallelism buy?", stage_answers.what_dp_buys),
    ("What becomes of a layout that does not fit?", stage_answers.what_does_not_fit),
    ("What is data parallelism in serving?", stage_answers.what_serving_dp_is),
    ("What does a pipeline cost?", stage_answers.what_a_pipe_costs),
    ("How is imbalance found and mended?", stage_answers.how_imbalance_is_mended),
    ("What does context parallelism cut?", layer_answers.what_cp_cuts),
    ("In which order do the axes grow?", layer_answers.in_which_order),
)


def answers(facts: Facts) -> tuple[Answer, ...]:
    """All of them."""
    return tuple(Answer(number, question, answer(facts)) for number, (question, answer) in enumerate(QUESTIONS, start=1))
