"""What is wrong with a document's fields, in the words of the one who wrote them.

pydantic says                            the user reads
extra_forbidden  train.step              train.step: unknown field, did you mean 'steps'?
extra_forbidden  train.micro_batch       train.micro_batch: unknown field here; it belongs to layout: write layout.micro_batch
int_type         train.steps             train.steps: expected a whole number, got 'ten'
literal_error, model_type  layout        layout: expected 'auto' or fields such as dp, pp, cp, got 'atuo', did you mean 'auto'?
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rayplane.errors import Problem
from rayplane.spec.document import Document, FieldPath, field_name
from rayplane.spec.job import JobSpec, ServeJob, SourceSection, TrainJob
from rayplane.spec.section import Section

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "finite_number": "a finite number",
}
"""What should have been there, by pydantic's error type."""

BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
"""The bound that was passed: its name in pydantic's context and how one says it."""

AUTO = ("layout", "cluster")
"""Fields that are the word `auto` or a section."""
EITHER = (*((name,) for name in AUTO), ("limits", "restarts"))
"""Paths of fields that are a section, or something shorter."""


def schema_problems(document: Document) -> list[Problem]:
    """Unknown, missing, mistyped and out-of-range fields of a job file."""
    root = kind_of(document)
    try:
        root.model_validate(document.value)
    except ValidationError as e:
        return [p for error in e.errors(include_url=False) for p in _problem(document, root, error)]
    return []


def kind_of(document: Document) -> type[TrainJob] | type[ServeJob]:
    """What a file is meant to be; a file that says neither, or both, is taken for one that trains."""
    return ServeJob if "serve" in document.value and "train" not in document.value else TrainJob


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """`, did you mean 'steps'?`, or nothing when no word is near."""
    near = get_close_matches(str(word), list(words), n=1)
    return f", did you mean '{near[0]}'?" if near else ""


def shown(value: object) -> str:
    """A value as the user would recognise it, never long."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(value if len(value) <= 60 else f"{value[:57]}...")
        case int() if value.bit_length() > 128:
            return "a number of more than 38 digits"
        case int() | float():
            return str(value)
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return f"a value of type {type(value).__name__}"


def _problem(document: Document, root: type[JobSpec], error: ErrorDetails) -> list[Problem]:
    """The problem that pydantic's error means; none for what another problem says already."""
    path: FieldPath = error["loc"]
    for either in EITHER:
        if path[: len(either)] == either and len(path) > len(either):
            value = reduce(lambda inner, name: inner[name], either, document.value)
            if isinstance(value, dict) != str(path[len(either)]).endswith("Section"):
                return []
            path = (*either, *path[len(either) + 1 :])
    if error["type"] == "invalid_key":
        return []
    return [document.problem(path, _message(root, path, error))]


def _message(root: type[JobSpec], path: FieldPath, error: ErrorDetails) -> str:
    kind, got, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(root, path)
    if kind == "missing":
        return "is missing" + _remedy(root, path)
    if kind == "literal_error" or (kind == "model_type" and path[0] in AUTO and len(path) == 1):
        return _choice(root, path, got)
    if kind == "model_type" and _section(root, path) is SourceSection:
        return f"expected text or {_some_fields(SourceSection)}, got {shown(got)}{_hint('string_type', got)}"
    if kind == "model_type":
        return f"expected {_some_fields(_section(root, path))}, got {shown(got)}"
    if kind in EXPECTED:
        return f"expected {EXPECTED[kind]}, got {shown(got)}{_hint(kind, got)}"
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return f"must be {words} {context[name]:g}, got {shown(got)}"
    if kind == "too_short":
        return f"needs at least {context['min_length']} entry, got an empty list"
    if kind == "string_pattern_mismatch":
        fixed = re.sub(r"[^A-Za-z0-9._-]+", "-", str(got)).strip("-._")[:63]
        rule = "letters, digits, '.', '_' and '-' only, 63 at most, the first a letter or digit"
        return f"may hold {rule}, got {shown(got)}" + (f"; try '{fixed}'" if fixed else "")
    return f"cannot be {shown(got)}"


def _unknown(root: type[JobSpec], path: FieldPath) -> str:
    """The message for a field that is not of its section: of which it is, or what is like it, or what there is."""
    if path == ("serve",):
        return "a job trains or serves, and this one has both; take out train or serve"
    fields = list(_section(root, path[:-1]).model_fields)
    if field_name(path) in _fields(TrainJob if root is ServeJob else ServeJob):
        return f"has no meaning in a job that {'serves' if root is ServeJob else 'trains'}; the fields here are {', '.join(fields)}"
    if elsewhere := [f for f in _fields(root) if re.split(r"\W+", f)[-1] == path[-1]]:
        sections = " or ".join(f.rpartition(".")[0] or "the top of the file" for f in elsewhere)
        return f"unknown field here; it belongs to {sections}: write {' or '.join(elsewhere)}"
    return "unknown field" + (did_you_mean(path[-1], fields) or f"; the fields here are {', '.join(fields)}")


def _choice(root: type[JobSpec], path: FieldPath, got: object) -> str:
    """The message for a word that is none of those allowed."""
    words = _words(root, path)
    listed = " or ".join(([", ".join(map(repr, words[:-1]))] if words[:-1] else []) + [repr(words[-1])])
    fields = f" or {_some_fields(_section(root, path))}" if path[0] in AUTO and len(path) == 1 else ""
    return f"expected {listed}{fields}, got {shown(got)}{did_you_mean(got, words)}"


def _hint(kind: str, got: object) -> str:
    if kind == "string_type" and isinstance(got, int | float):
        return "; put it in quotes"
    if kind == "list_type" and isinstance(got, str):
        return f"; write [{got if len(got) <= 60 else '…'}]"
    return ""


def _remedy(root: type[JobSpec], path: FieldPath) -> str:
    """How to add a field that is missing, by its own help text."""
    section = _section(root, path[:-1])
    inner = _inner(section, str(path[-1]))
    other = " to train, or `serve: {}` to serve" if path == ("train",) else ""
    return (f"; add `{path[-1]}:` with {_some_fields(inner)}" if inner else f"; add `{path[-1]}: …`") + other


def _some_fields(section: type[Section]) -> str:
    names = list(section.model_fields)
    return f"fields such as {', '.join(names[:3])}" if len(names) > 1 else f"the field {names[0]}"


def _section(root: type[JobSpec], path: FieldPath) -> type[Section]:
    """The section at a path of the job file (of a list, that of its entries)."""
    section: type[Section] = root
    for segment in path:
        if isinstance(segment, str):
            section = _inner(section, segment) or section
    return section


def _inner(section: type[Section], name: str) -> type[Section] | None:
    return next((t for t in _types(section.model_fields[name].annotation) if isinstance(t, type) and issubclass(t, Section)), None)


def _fields(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted names of all fields of a section and of those in it; `[]` stands behind a list of sections."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if inner := _inner(section, name):
            yield from _fields(inner, f"{prefix}{name}{'[]' if list in _origins(field.annotation) else ''}.")


def _origins(annotation: Any) -> set[Any]:
    """The generic types that a type is made of."""
    return {get_origin(annotation)}.union(*map(_origins, get_args(annotation)))


def _words(root: type[JobSpec], path: FieldPath) -> Sequence[str]:
    """The words that a field allows."""
    return [t for t in _types(_section(root, path[:-1]).model_fields[str(path[-1])].annotation) if isinstance(t, str)]


def _types(annotation: Any) -> list[Any]:
    """What a type is made of, down to its leaves: of `Literal["auto"] | list[X]`, "auto" and X."""
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _types(part)] if inner else [annotation]
