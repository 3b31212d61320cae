"""What a rank's engine says to a structure that it cannot hold an answer to."""

import pytest

from rayplane.errors import RequestError
from rayplane.serve import worker
from rayplane.serve.sampling import Grammar, Structure


def test_a_model_of_bytes_refuses_structures_for_that_reason():
    matchers = worker._matchers({"tokenizer": "", "end_tokens": [0]}, 512)
    with pytest.raises(RequestError, match="its tokens are bytes"):
        matchers(Structure(Grammar.REGEX, "a"))


def test_without_xgrammar_structures_are_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(worker, "find_spec", lambda name: None)
    matchers = worker._matchers({"tokenizer": "tokenizer.json", "end_tokens": [0]}, 512)
    with pytest.raises(RequestError, match=r"rayplane\[structured\]"):
        matchers(Structure(Grammar.REGEX, "a"))
