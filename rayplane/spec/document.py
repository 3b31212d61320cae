"""A YAML file that still knows on which line each field stands.

jobs/bad.yaml                        read_document(path)
1  name: bad                         .value             {"name": "bad", "train": {"step": 3}}
2  train:                            .line(("train",))          2
3    step: 3                         .line(("train", "step"))   3
                                     .line(("train", "x"))      2     a field that is not there: its section
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rayplane.errors import Problem, SpecError

FieldPath = tuple[str | int, ...]


class CoreLoader(yaml.SafeLoader):
    """YAML 1.2's core schema: `3e-3` is a number and `on` is text, which PyYAML's YAML 1.1 rules have the other way round."""


CORE_SCHEMA = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["", *"~nN"]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$", [*"-+0123456789"]),
    ("float", r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9]+|[0-9][0-9_]*\.?)(?:[eE][-+]?[0-9]+)?$", [*"-+.0123456789"]),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", [*"-+."]),
    ("merge", r"^<<$", ["<"]),
)
"""(tag, form of the scalar, its possible first characters). `<<` is YAML 1.1's merge key, kept for those who share sections."""

CoreLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in CORE_SCHEMA:
    CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), first)


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping read from a file, the nodes it came from, and what was wrong with its form."""

    file: str
    value: dict[str, Any]
    root: yaml.MappingNode
    problems: tuple[Problem, ...]

    def line(self, path: FieldPath) -> int:
        """Line of a field's key (of a list's entry), or of the innermost section around it that the file has."""
        node: yaml.Node = self.root
        line = node.start_mark.line
        for segment in path:
            child = _child(node, segment)
            if child is None:
                break
            line, node = child
        return line + 1

    def problem(self, path: FieldPath, message: str) -> Problem:
        """A mistake at a field."""
        return Problem(message, field_name(path), self.file, self.line(path))

    def locate(self, problem: Problem) -> Problem:
        """A problem that names a field, with the file and line where that stands."""
        return replace(problem, file=self.file, line=self.line(field_path(problem.field)))


def field_name(path: FieldPath) -> str:
    """('cluster', 'nodes', 0, 'device') prints as cluster.nodes[0].device."""
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p if p.isprintable() else repr(p)}" for p in path)
    return name.removeprefix(".")


def field_path(name: str) -> FieldPath:
    """The inverse of `field_name` for names without dots of their own."""
    return tuple(int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", name) for index in [index])


def read_document(path: Path) -> Document:
    """Read a YAML file whose top is a mapping. Raises SpecError when it has no such form; lesser faults are in `problems`."""
    file = str(path)
    text = _read_text(path)
    loader = CoreLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise SpecError(Problem("the file is empty; it needs at least name, model and train or serve", file=file))
        if not isinstance(root, yaml.MappingNode):
            raise SpecError(Problem("expected fields such as `name: …` at the top of the file", file=file, line=_line(root)))
        problems = tuple(replace(p, file=file) for p in _faults(loader, root))
        return Document(file, _construct(loader, root, problems), root, problems)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where, line = (f" (column {mark.column + 1})", mark.line + 1) if mark else ("", 0)
        raise SpecError(Problem(f"not valid YAML: {e.problem or e.context}{where}", file=file, line=line)) from None
    except RecursionError:
        raise SpecError(Problem("lists or mappings are nested too deeply", file=file)) from None
    finally:
        loader.dispose()


def _construct(loader: CoreLoader, root: yaml.Node, problems: tuple[Problem, ...]) -> dict[str, Any]:
    """The mapping as plain values, in spite of the problems where that can be."""
    try:
        value: dict[str, Any] = loader.construct_document(root)
        return value
    except (yaml.YAMLError, ValueError, AttributeError, KeyError):
        if problems:
            raise SpecError(problems) from None
        raise


def _read_text(path: Path) -> str:
    file = str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SpecError(Problem(f"no such file{_similar_file(path)}", file=file)) from None
    except IsADirectoryError:
        jobs = ", ".join(sorted(p.name for p in path.glob("*.yaml"))[:5])
        raise SpecError(Problem("is a folder; name a file" + (f" in it: {jobs}" if jobs else ""), file=file)) from None
    except OSError as e:
        raise SpecError(Problem(f"cannot be read: {e.strerror}", file=file)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise SpecError(Problem("is not UTF-8 text; save it as UTF-8", file=file, line=line)) from None
    if bad := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise SpecError(Problem(f"holds the character {bad[0]!r}, which YAML does not allow", file=file, line=line))
    return text


def _similar_file(path: Path) -> str:
    near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], n=1) if path.parent.is_dir() else []
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def _faults(loader: CoreLoader, root: yaml.Node) -> Iterator[Problem]:
    """Duplicate fields, names that are not text, and scalars that do not fit their tag. A node behind an alias is looked at once."""
    seen: set[int] = set()
    todo: list[tuple[yaml.Node, FieldPath]] = [(root, ())]
    while todo:
        node, path = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield from _key_faults(node, path)
            todo += [(child, (*path, str(key.value))) for key, child in node.value]
        elif isinstance(node, yaml.SequenceNode):
            todo += [(child, (*path, i)) for i, child in enumerate(node.value)]
        elif fault := _scalar_fault(loader, node):
            yield Problem(fault, field_name(path), line=_line(node))


def _key_faults(node: yaml.MappingNode, path: FieldPath) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.tag != "tag:yaml.org,2002:str":
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            yield Problem(f"field names are text, got {shown}", field_name(path), line=_line(key))
        elif key.value in first:
            message = f"given twice, first on line {first[key.value]}; remove one"
            yield Problem(message, field_name((*path, key.value)), line=_line(key))
        else:
            first[key.value] = _line(key)


def _scalar_fault(loader: CoreLoader, node: yaml.Node) -> str:
    try:
        loader.construct_object(node)
    except yaml.MarkedYAMLError:
        return f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed here"
    except (ValueError, AttributeError, KeyError):
        return f"cannot be read as {node.tag.removeprefix('tag:yaml.org,2002:')}"
    return ""


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _child(node: yaml.Node, segment: str | int) -> tuple[int, yaml.Node] | None:
    """(line, counted from 0, and node) of an entry; of equal keys the last counts, as when the mapping is built."""
    if isinstance(node, yaml.MappingNode):
        found = [(key.start_mark.line, value) for key, value in node.value if key.value == segment]
        return found[-1] if found else None
    if isinstance(node, yaml.SequenceNode) and isinstance(segment, int) and segment < len(node.value):
        entry = node.value[segment]
        return entry.start_mark.line, entry
    return None
