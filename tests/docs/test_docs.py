"""The documents keep their form, and the tests that they call as witnesses exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rayplane.cli.app import app
from rayplane.spec.builders import BUILDERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAX_LINES = 12


def records() -> list[str]:
    return re.split(r"^## ", (DOCS / "decisions.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("record", records(), ids=lambda r: r.partition("\n")[0])
def test_a_decision_has_context_choice_and_price_in_twelve_lines(record):
    assert re.findall(r"^(\w+): ", record, flags=re.MULTILINE) == ["Context", "Choice", "Price"]
    assert len(record.strip().splitlines()) <= MAX_LINES


def test_witnesses_of_the_answers_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "parallelism.md").read_text(encoding="utf-8"))
    assert named
    assert not [f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")]


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_files_that_are_named_exist(document):
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:rayplane|jobs|tests|benchmarks|docs)/[\w./-]+?)(?:::\w+)?`", text)
    named += [f"rayplane/{path}" for path in re.findall(r"`((?:comm|control|model|runtime|spec|train)/[\w./-]*)`", text)]
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_commands_that_are_named_exist(document):
    commands = get_command(app).commands
    shown = "\n".join(re.findall(r"`rayplane [^`]+`|^\$ rayplane .*$", document.read_text(encoding="utf-8"), re.MULTILINE))
    for name, rest in re.findall(r"rayplane ([a-z]+)((?: [^\s`|]+)*)", shown):
        assert name in commands, name
        command, words = commands[name], rest.split()
        if inner := getattr(command, "commands", None):
            assert words[0] in inner, f"{name}{rest}"
            command = inner[words[0]]
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, f"{name}{rest}"


def test_pictures_are_what_the_command_draws():
    text = (DOCS / "parallelism.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    examples = [example for block in blocks for example in re.split(r"^\$ ", block, flags=re.MULTILINE)]
    shown = [example for example in examples if example.startswith("rayplane trace")]
    for example in shown:
        command, *lines = example.splitlines()
        printed = CliRunner().invoke(app, command.split()[1:]).stdout
        assert [line.rstrip() for line in printed.splitlines()] == lines, command
    assert {name for name in BUILDERS if any(f"--schedule {name} " in example for example in shown)} == set(BUILDERS)
