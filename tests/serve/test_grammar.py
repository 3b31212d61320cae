"""Outputs that keep to their grammar, whatever the model would rather say."""

import json
import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rayplane.errors import RequestError
from rayplane.serve.notes import Admission
from rayplane.serve.sampler import Due, Sampler
from rayplane.serve.sampling import Grammar, SamplingParams, Structure

grammar = pytest.importorskip("rayplane.serve.grammar", reason="xgrammar is not installed")

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
END = len(ALPHABET)
VOCAB = END + 10
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}


def tokenizer():
    """A token a byte, and one for the end."""
    made = Tokenizer(models.BPE({c: i for i, c in enumerate([*ALPHABET, "<end>"])}, []))
    made.decoder = decoders.ByteLevel()
    return made


def grammars():
    """Of the tokenizer."""
    known = tokenizer()
    return grammar.Grammars([known.id_to_token(i) for i in range(END + 1)], known.to_str(), VOCAB, [END])


def written(structure, seed, most=400):
    """What a model that knows nothing writes under a structure."""
    known = tokenizer()
    sampler = Sampler(VOCAB, grammars())
    sampler.admit([Admission(1, SamplingParams(seed=seed, structure=structure, max_tokens=most), (0,), (), (END,))])
    logits, tokens = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)), []
    while len(tokens) < most:
        token = sampler.sample(logits[None], [Due(1)])[0].tokens[0]
        if token == END:
            return known.decode(tokens)
        tokens.append(token)
    return None


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_is_kept_to(seed):
    text = written(Structure(Grammar.JSON_SCHEMA, json.dumps(SCHEMA)), seed)
    value = json.loads(text)
    assert set(value) == {"name", "old"} and isinstance(value["old"], bool) and re.fullmatch("[a-z]{1,5}", value["name"])


@pytest.mark.parametrize("seed", range(3))
def test_an_expression_is_kept_to(seed):
    expression = r"[a-f]{3}-\d{2,4}"
    assert re.fullmatch(expression, written(Structure(Grammar.REGEX, expression), seed))


def test_a_grammar_is_kept_to():
    assert written(Structure(Grammar.EBNF, 'root ::= "yes" | "no"'), 0) in ("yes", "no")


def test_an_object_is_json_of_any_kind():
    logits_prefer_closing = [written(Structure(Grammar.JSON_OBJECT), seed, 3000) for seed in range(8)]
    ended = [text for text in logits_prefer_closing if text is not None]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)


@pytest.mark.parametrize(
    "structure",
    [Structure(Grammar.JSON_SCHEMA, "{"), Structure(Grammar.REGEX, "(["), Structure(Grammar.EBNF, "root ::= nowhere")],
    ids=lambda s: s.kind.value,
)
def test_what_makes_no_sense_is_refused_before_it_reaches_an_engine(structure):
    with pytest.raises(RequestError, match="mend the schema") as refused:
        grammars()(structure)
    assert "/" not in str(refused.value)
