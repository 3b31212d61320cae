"""A document knows on which line each of its fields stands."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.errors import Problem
from rayplane.spec import document as module
from rayplane.spec.document import FieldPath, field_name, field_path, read_document

TEXT = """\
# a comment
first: 1
section:
  inner: {deep: 2,
          wide: 3}
  entries:
    - a
    - name: b
      size: 4
last:
  - 5
"""


def test_example_of_the_module_holds(tmp_path: Path) -> None:
    assert module.__doc__
    text = "\n".join(re.split(r"  +\.", line)[0] for line in re.findall(r"^ *\d  (.+)$", module.__doc__, re.MULTILINE))
    (tmp_path / "bad.yaml").write_text(text)
    document = read_document(tmp_path / "bad.yaml")
    assert document.value == {"name": "bad", "train": {"step": 3}}
    lines = re.findall(r"\.line\((\(.*?\))\) +(\d)", module.__doc__)
    assert len(lines) == 3
    for path, line in lines:
        assert document.line(tuple(re.findall(r'"(\w+)"', path))) == int(line)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("first",), 2),
        (("section",), 3),
        (("section", "inner", "deep"), 4),
        (("section", "inner", "wide"), 5),
        (("section", "entries", 0), 7),
        (("section", "entries", 1, "size"), 9),
        (("section", "entries", 2), 6),
        (("section", "nowhere", "deep"), 3),
        (("last", 0), 11),
        (("nowhere",), 2),
    ],
)
def test_a_field_is_found_on_its_line_or_its_sections(tmp_path: Path, path: FieldPath, line: int) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    assert read_document(tmp_path / "a.yaml").line(path) == line


def test_a_problem_is_located_by_the_name_of_its_field(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    problem = read_document(file).locate(Problem("too big", "section.entries[1].size"))
    assert str(problem) == f"{file}:9: section.entries[1].size: too big"


@given(st.lists(st.from_regex(r"[a-z_]+", fullmatch=True) | st.integers(0, 99), max_size=5).map(tuple))
def test_names_of_fields_read_back(path: FieldPath) -> None:
    assert field_path(field_name(path)) == path


def test_a_name_that_cannot_be_printed_is_quoted() -> None:
    assert field_name(("model", "a\nb")) == r"model.'a\nb'"
