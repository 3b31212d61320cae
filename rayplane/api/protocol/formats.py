"""Which form an answer must have, in OpenAI's words and in those of open engines.

response_format      {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}, {"type": "json_object"}, {"type": "text"}
structured_outputs   {"json": {…}}, {"regex": "…"}, {"choice": ["yes", "no"]}, {"grammar": "root ::= …"}
guided_json, guided_regex, guided_choice, guided_grammar       the same, each as a field of its own
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rayplane.api.errors import invalid
from rayplane.api.protocol.section import Section
from rayplane.serve.sampling import Grammar, Structure

Source = Annotated[str, Field(min_length=1, max_length=100_000)]
Choices = Annotated[tuple[Source, ...], Field(min_length=1, max_length=1000)]


class TextFormat(Section):
    """No form."""

    type: Literal["text"]


class JsonObjectFormat(Section):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Section):
    """A JSON schema with a name."""

    model_config = ConfigDict(protected_namespaces=(), populate_by_name=True)

    name: Annotated[str, Field(max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """Any JSON object when left out."""
    strict: bool | None = None
    """Answers keep to the schema in any case."""


class JsonSchemaFormat(Section):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Section):
    """Exactly one of them."""

    model_config = ConfigDict(protected_namespaces=(), populate_by_name=True)

    json_: Annotated[dict[str, Any] | Source | None, Field(alias="json")] = None
    """A JSON schema, as an object or as text."""
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    """In EBNF, from `root`."""
    json_object: bool | None = None


class FormatFields(Section):
    """The fields of a request that say which form its answer must have; at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Source | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None

    def structure(self) -> Structure | None:
        """What the answer is held to; None when it is free. ApiError where the fields contradict each other."""
        asked = [(name, s) for name, s in (*_response_format(self.response_format), *self._guided(), *self._structured()) if s]
        if len(asked) > 1:
            raise invalid(asked[1][0], f"the answer already has a form, by {asked[0][0]}; leave one out")
        if self.structured_outputs is not None and not asked:
            raise invalid("structured_outputs", "names no form; give one of json, regex, choice, grammar, json_object")
        return asked[0][1] if asked else None

    def _guided(self) -> Sequence[tuple[str, Structure | None]]:
        return (
            ("guided_json", _json(self.guided_json)),
            ("guided_regex", _of(Grammar.REGEX, self.guided_regex)),
            ("guided_choice", _choice(self.guided_choice)),
            ("guided_grammar", _of(Grammar.EBNF, self.guided_grammar)),
        )

    def _structured(self) -> Sequence[tuple[str, Structure | None]]:
        asked = self.structured_outputs or StructuredOutputs()
        return (
            ("structured_outputs.json", _json(asked.json_)),
            ("structured_outputs.regex", _of(Grammar.REGEX, asked.regex)),
            ("structured_outputs.choice", _choice(asked.choice)),
            ("structured_outputs.grammar", _of(Grammar.EBNF, asked.grammar)),
            ("structured_outputs.json_object", Structure(Grammar.JSON_OBJECT) if asked.json_object else None),
        )


def _response_format(asked: ResponseFormat | None) -> Sequence[tuple[str, Structure | None]]:
    match asked:
        case JsonObjectFormat():
            return (("response_format", Structure(Grammar.JSON_OBJECT)),)
        case JsonSchemaFormat(json_schema=named):
            return (("response_format", Structure(Grammar.JSON_OBJECT) if named.schema_ is None else _json(named.schema_)),)
        case _:
            return ()


def _json(schema: dict[str, Any] | str | None) -> Structure | None:
    if schema is None:
        return None
    return Structure(Grammar.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


def _of(kind: Grammar, source: str | None) -> Structure | None:
    return Structure(kind, source) if source is not None else None


def _choice(choices: Sequence[str] | None) -> Structure | None:
    return Structure(Grammar.REGEX, "|".join(f"({re.escape(choice)})" for choice in choices)) if choices else None
