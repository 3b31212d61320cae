"""A prompt begins and ends with the tokens that its tokenizer says, once."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from rayplane.api.protocol.requests import Message
from rayplane.api.template import ChatTemplate
from rayplane.api.tokenizer import open_tokenizer
from tests.train.test_gguf_tokenizer import trained, write

BOS, EOS, A, B = 0, 1, 2, 3
BEGIN, BOTH = "<s> $A", "<s> $A </s>"
END, PAD = 0, 1
"""Of the tokenizer in the GGUF files: its <|end|> and its <|pad|>, which begins texts here."""


def hugging_face(folder, template="", **config):
    """A tokenizer of two letters, with a post-processor of tokenizer.json and what tokenizer_config.json says."""
    made = tokenizers.Tokenizer(models.WordLevel({"<s>": BOS, "</s>": EOS, "a": A, "b": B}, unk_token="b"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.add_special_tokens(["<s>", "</s>"])
    if template:
        made.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}))
    return open_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("template", "config", "around"),
    [
        ("", {}, ((), ())),
        ("", {"add_bos_token": True}, ((BOS,), ())),
        ("", {"add_bos_token": True, "add_eos_token": True}, ((BOS,), (EOS,))),
        ("", {"add_bos_token": True, "bos_token": None}, ((), ())),
        (BEGIN, {}, ((BOS,), ())),
        (BEGIN, {"add_bos_token": True}, ((BOS,), ())),
        (BEGIN, {"add_bos_token": False}, ((), ())),
        (BEGIN, {"add_bos_token": None}, ((BOS,), ())),
        (BOTH, {}, ((BOS,), (EOS,))),
        (BOTH, {"add_eos_token": False}, ((BOS,), ())),
        (BOTH, {"add_bos_token": True, "add_eos_token": True}, ((BOS,), (EOS,))),
        (BOTH, {"add_bos_token": False, "add_eos_token": False}, ((), ())),
    ],
    ids=str,
)
def test_the_config_has_the_last_word_on_what_stands_around_a_prompt(tmp_path, template, config, around):
    begin, end = around
    opened = hugging_face(tmp_path, template, **config)
    for text, ids in (("", ()), ("ab", (A, B)), ("aab", (A, A, B))):
        assert opened.encode(text, special=True) == (*begin, *ids, *end)
        assert opened.encode(text, special=False) == ids


def test_transformers_says_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    opened = hugging_face(tmp_path, BEGIN, tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert list(opened.encode("ab", special=True)) == peer("ab")["input_ids"]


def in_gguf(folder, pre="gpt-2", **around):
    return open_tokenizer(str(write(folder / "model.gguf", trained(pre), pre, around)))


@pytest.mark.parametrize(
    ("pre", "around", "expected"),
    [
        ("gpt-2", {}, ((), ())),
        ("gpt-2", {"bos_token_id": PAD}, ((), ())),
        ("gpt-2", {"bos_token_id": PAD, "add_bos_token": True}, ((PAD,), ())),
        ("gpt-2", {"bos_token_id": PAD, "add_bos_token": True, "add_eos_token": True}, ((PAD,), (END,))),
        ("gpt-2", {"add_bos_token": True}, ((), ())),
        ("gpt-2", {"bos_token_id": PAD, "add_bos_token": False, "add_eos_token": True}, ((), (END,))),
        ("llama-bpe", {"bos_token_id": PAD}, ((PAD,), ())),
        ("llama-bpe", {"bos_token_id": PAD, "add_bos_token": False}, ((), ())),
        ("llama-bpe", {}, ((), ())),
    ],
    ids=str,
)
def test_a_gguf_says_what_stands_around_a_prompt_as_llama_cpp_reads_it(tmp_path, pre, around, expected):
    opened = in_gguf(tmp_path, pre, **around)
    plain = opened.encode("def f(x):", special=False)
    assert (opened.begin, opened.end) == expected
    assert opened.encode("def f(x):", special=True) == (*expected[0], *plain, *expected[1])
    assert opened.model.encode("def f(x):").ids == [*expected[0], *plain, *expected[1]], "what is written out says it by itself"


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    ("template", "says_it"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("<|pad|>{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
    ],
    ids=["bos_token", "its text", "nothing"],
)
def test_a_conversation_begins_once(tmp_path, template, says_it, adds):
    opened = in_gguf(tmp_path, bos_token_id=PAD, add_bos_token=adds, chat_template=template)
    prompt = ChatTemplate(opened.chat_template, opened.words).render([Message(role="user", content="def")], True, {})
    plain = opened.encode("def", special=False)
    assert opened.encode(prompt, special=False) == ((PAD, *plain) if says_it or adds else plain)
