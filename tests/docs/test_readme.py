"""The README says nothing that is not so: its job file loads, its commands exist, its pictures are what the code prints."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

from rayplane.cli.app import app
from rayplane.spec import builders, passes
from rayplane.spec.job import TrainJob
from rayplane.spec.load import load_job, load_model
from rayplane.spec.source import preset_names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def fields(model: type[BaseModel]) -> set[str]:
    """Names of all fields of a section and of the sections in it."""
    names = set(model.model_fields)
    for field in model.model_fields.values():
        inner = [field.annotation, *get_args(field.annotation)]
        inner += [a for i in inner for a in get_args(i)]
        for kind in inner:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names |= fields(kind)
    return names


@pytest.fixture
def job_file() -> str:
    (text,) = (b for b in blocks("yaml") if b.startswith("name:"))
    return text


def test_the_job_file_loads_and_is_the_quickstart(job_file, tmp_path):
    path = tmp_path / "readme.yaml"
    path.write_text(job_file)
    job = load_job(path)
    assert job == load_job(ROOT / "jobs" / "quickstart.yaml")
    assert load_model(job.model).num_params


def test_the_job_file_names_every_field(job_file):
    assert not [name for name in fields(TrainJob) if not re.search(rf"\b{name}\b", job_file)]


def test_the_job_file_names_every_preset(job_file):
    assert not [name for name in preset_names() if name not in job_file]


def test_commands_and_their_options_exist():
    command = get_command(app)
    shown = "\n".join(re.findall(r"`rayplane [^`]+`|^\$ .*$", README, re.MULTILINE))
    used = re.findall(r"rayplane ([a-z]+)((?: [^\s`|]+)*)", shown)
    assert {"run", "plan", "status", "validate"} <= {name for name, _ in used}
    for name, rest in used:
        assert name in command.commands, name
        known = {flag for option in command.commands[name].params for flag in (*option.opts, *option.secondary_opts)}
        assert {word for word in rest.split() if word.startswith("--")} <= known, f"{name}{rest}"


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:`|\$ )make ([a-z]+)", README))
    assert {"run", "test"} <= used <= targets


def test_schedule_pictures_are_what_the_code_prints():
    built = passes.add_step(passes.add_communication(builders.one_f_one_b(2, 3)))
    assert str(builders.one_f_one_b(2, 3)) in README
    assert str(built) in README


def test_the_example_of_a_new_schedule_passes_the_check():
    (source,) = blocks("python")
    names = {**vars(builders)}
    exec(source, names)
    (new,) = [value for name, value in names.items() if name not in vars(builders) and callable(value)]
    for stages, microbatches in ((1, 1), (2, 3), (4, 8)):
        passes.check(passes.add_step(passes.add_communication(new(stages, microbatches))))


def test_the_shown_mistakes_are_what_the_loader_says(job_file, tmp_path, monkeypatch):
    """The README changes three lines of its job file; the errors of the result stand below them."""
    (shown,) = [b for b in blocks("console") if "jobs/bad.yaml" in b]
    errors = [line.split(": ", 1)[1] for line in shown.splitlines() if line.startswith("jobs/bad.yaml:")]
    text = (ROOT / "jobs" / "quickstart.yaml").read_text()
    for old, new in (("  steps:", "  step:"), ("fp32", "fp8"), ("layout: auto", "layout: {pp: 2, boundaries: [4, 3]}")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    monkeypatch.chdir(tmp_path)
    path = Path("bad.yaml")
    path.write_text(text)
    with pytest.raises(Exception) as caught:
        load_job(path)
    assert [line.split(": ", 1)[1] for line in str(caught.value).splitlines()] == errors


def test_files_and_folders_that_are_named_exist():
    named = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"`((?:rayplane|jobs|tests|benchmarks|docs)/[\w./-]*)`", README)
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_shown_answers_are_what_the_command_prints(command, monkeypatch):
    """Line by line, however wide the columns are; an ellipsis stands for lines left out."""
    monkeypatch.chdir(ROOT)
    (shown,) = [b for b in blocks("console") if b.startswith(f"$ rayplane {command}")]
    first, *lines = shown.splitlines()
    answer = CliRunner().invoke(app, first.split()[2:])
    printed = {" ".join(line.split()) for line in answer.stdout.splitlines()}
    assert not [line for line in lines if line.strip() != "…" and " ".join(line.split()) not in printed]
