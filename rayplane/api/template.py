"""A conversation as the text that the model was trained on, by the model's own Jinja template in a sandbox.

[{"role": "user", "content": "Hi"}]   ──template──▶   "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n"
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rayplane.api.errors import ApiError, invalid
from rayplane.api.protocol.requests import Message
from rayplane.errors import DataError


class ChatTemplate:
    """Renders conversations. Templates can ask for the date, and refuse a conversation."""

    def __init__(self, source: str, words: Mapping[str, str]):
        """`words`: bos_token and the like. DataError when the template cannot be read."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        self._words = dict(words)
        self._template: Template | None = None
        if source:
            try:
                self._template = environment.from_string(source)
            except TemplateSyntaxError as error:
                raise DataError(f"serve.tokenizer: the chat template cannot be read, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Message], begin_answer: bool, values: Mapping[str, Any]) -> str:
        """The prompt. ApiError where there is no template, or it does not take these messages."""
        if self._template is None:
            raise ApiError(400, "messages: this model has no chat template; use /v1/completions", "messages")
        turns = [{"role": m.role, "content": m.text} | ({"name": m.name} if m.name else {}) for m in messages]
        given = {**values, **self._words, "messages": turns, "add_generation_prompt": begin_answer}
        try:
            return self._template.render(given)
        except TemplateError as error:
            raise invalid("messages", f"the model's chat template does not take them ({error})") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise invalid("chat_template_kwargs", f"the model's chat template fails ({error})") from None


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
