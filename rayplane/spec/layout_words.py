"""A layout as words of a command line, with the fields of a job's `layout`.

tp=2 pp=2 schedule=zb-h1 boundaries=5,3      LayoutSection(tp=2, pp=2, schedule="zb-h1", boundaries=[5, 3])
tpp=2                                        layout.tpp: unknown field, did you mean 'tp'?
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from rayplane.errors import Problem, SpecError
from rayplane.spec.document import CoreLoader, Document
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import unsupported
from rayplane.spec.schema import schema_problems


def layout_of(words: Sequence[str]) -> LayoutSection:
    """The section that they make. Raises SpecError with every mistake in them."""
    pairs = [word.partition("=") for word in words]
    if not words or (bad := [word for word, (name, _, value) in zip(words, pairs, strict=True) if not name or not value]):
        raise SpecError(f"{bad[0] if words else 'a layout'}: expected fields with values, such as tp=2 pp=2")
    if twice := [name for i, (name, _, _) in enumerate(pairs) if name in {other for other, _, _ in pairs[:i]}]:
        raise SpecError(Problem("given twice; remove one", f"layout.{twice[0]}"))
    document = _document("layout: {" + ", ".join(f"{name}: {_value(value)}" for name, _, value in pairs) + "}", words)
    if problems := [p for p in schema_problems(document) if p.field.startswith("layout")]:
        raise SpecError([Problem(p.message, p.field) for p in problems])
    section = LayoutSection.model_validate(document.value["layout"])
    if faults := [Problem(reason, f"layout.{name}") for name, reason in unsupported(section.layout(1))]:
        raise SpecError(faults)
    return section


def _document(text: str, words: Sequence[str]) -> Document:
    loader = CoreLoader(text)
    try:
        root = loader.get_single_node()
        assert isinstance(root, yaml.MappingNode), "the text begins as one"
        return Document("", loader.construct_document(root), root, ())
    except (yaml.YAMLError, ValueError):
        raise SpecError(f"{' '.join(words)}: expected fields with values, such as tp=2 pp=2") from None
    finally:
        loader.dispose()


def _value(text: str) -> str:
    """As YAML has it: numbers with commas between them are a list."""
    return f"[{text}]" if "," in text and not text.startswith("[") else text
