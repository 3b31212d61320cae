"""docs/planning.md shows what the commands print, and figures that lie in benchmarks/results."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayplane.cli.app import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("block", blocks("console"), ids=lambda b: words(b.splitlines()[0]))
def test_shown_answers_are_what_the_command_prints(block, monkeypatch, tmp_path):
    """Line by line, however wide the columns are and wherever lines are broken; an ellipsis stands for lines left out."""
    first, *lines = block.splitlines()
    (job,) = blocks("yaml")
    (tmp_path / "mixed.yaml").write_text(job)
    monkeypatch.chdir(ROOT)
    command = first.replace("jobs/mixed.yaml", str(tmp_path / "mixed.yaml"))
    printed = words(CliRunner().invoke(app, command.split()[2:]).stdout)
    assert not [line for line in lines if words(line) != "…" and words(line) not in printed]


def test_witnesses_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert named
    assert not [f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")]


@pytest.mark.parametrize(
    ("label", "file", "part", "keys"),
    [
        ("step, core runs", "runs", "core", ("mape", "median", "p90")),
        ("step, all runs", "runs", "all", ("mape", "median", "p90")),
        ("time to the first token", "serving", "", ("ttft_mape", "ttft_median", "ttft_p90")),
        ("time between tokens", "serving", "", ("tpot_mape", "tpot_median", "tpot_p90")),
        ("tokens/s of a served load", "serving", "", ("tokens_mape", "tokens_median", "tokens_p90")),
    ],
)
def test_figures_are_those_of_the_results(label, file, part, keys):
    result = json.loads((RESULTS / f"published_{file}.json").read_text())
    result = result[part] if part else result
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| {label} |"))
    assert [cell.strip() for cell in row.split("|")[3:6]] == [f"{result[key]:.1f}%" for key in keys]
