"""Models that are served: the numbers listed for each, and what the fullest rank holds of a layer."""

import re

import pytest

from rayplane.errors import SpecError
from rayplane.plan.serving.served import Cut, Served, known, part
from rayplane.spec.model import ModelSpec

SIZES = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.1-405b": 405.9,
    "llama-2-13b": 13.0,
    "qwen3-32b": 32.8,
    "qwen2.5-72b": 72.7,
    "mistral-7b": 7.24,
    "gpt-j-6b": 6.05,
    "falcon-180b": 178.6,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "llama-4-maverick": 400.7,
    "deepseek-v3": 671.0,
    "deepseek-v2-lite": 15.7,
    "kimi-k2": 1026.0,
}
"""Parameters in billions, as their publishers count them."""


def parameters(of: Served) -> float:
    tables = (1 if of.model.tied else 2) * of.model.vocab * of.model.hidden
    return part(of, Cut()).layer_elements * of.model.layers + tables


@pytest.mark.parametrize(("name", "billions"), SIZES.items())
def test_a_listed_model_has_as_many_parameters_as_published(name: str, billions: float) -> None:
    assert parameters(known(name)) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.1-70b"),
        ("LLaMA-70B", "llama-2-70b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-r1-distill-llama-70b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
    ],
)
def test_names_that_people_use_are_found(said: str, name: str) -> None:
    assert known(said).model.name == name


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=re.escape("no numbers of a model called 'Llama-5-8B'; the nearest are")):
        known("Llama-5-8B")


def test_nine_heads_over_two_ranks_are_five_and_both_share_a_kv_head() -> None:
    model = ModelSpec(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=49152)
    held = part(Served(model), Cut(tp=2))
    assert (held.q_width, held.kv_width, held.mlp_width) == (5 * 64, 2 * 2 * 64, 768)


def test_tp_cuts_a_dense_layer_evenly() -> None:
    whole, eighth = (part(known("llama-3.1-70b"), Cut(tp=tp)) for tp in (1, 8))
    assert sum(eighth.attention + eighth.feed_forward) == pytest.approx(sum(whole.attention + whole.feed_forward) / 8)


def test_every_rank_keeps_the_whole_latent_cache() -> None:
    one, eight = (part(known("deepseek-v3"), Cut(tp=tp)) for tp in (1, 8))
    assert one.kv_width == eight.kv_width == 512 + 64


def test_experts_are_cut_over_ranks_or_within_each() -> None:
    model = known("qwen3-235b-a22b")
    apart, within = part(model, Cut(tp=8, ep=8)), part(model, Cut(tp=8))
    assert (apart.experts, within.experts) == (16, 128)
    assert apart.experts * sum(apart.expert) == within.experts * sum(within.expert)


def test_ranks_with_sequences_of_their_own_hold_attention_whole() -> None:
    alone, apart = (part(known("deepseek-v3"), cut).attention for cut in (Cut(), Cut(tp=8, ep=8, attention_dp=8)))
    assert apart == alone
