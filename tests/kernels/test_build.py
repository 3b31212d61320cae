"""The C++ ops are built once, by one of many; without a compiler torch does their work, with one warning."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rayplane.kernels import build
from rayplane.kernels.build import BuildError, built
from rayplane.kernels.native import load

ROOT = Path(__file__).parents[2]
HAVE_COMPILER = load() is not None
needs_compiler = pytest.mark.skipif(not HAVE_COMPILER, reason="no C++ compiler")


@pytest.fixture
def tiny_source(tmp_path, monkeypatch):
    """Sources that compile at once."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "program.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCE", folder)
    return folder


@needs_compiler
def test_a_build_is_kept_until_its_source_changes(tiny_source, tmp_path):
    first = built(tmp_path / "cache")
    made = first.stat().st_mtime_ns
    assert built(tmp_path / "cache") == first and first.stat().st_mtime_ns == made
    (tiny_source / "program.cpp").write_text('extern "C" int answer() { return 43; }\n')
    assert built(tmp_path / "cache") != first


@needs_compiler
def test_what_does_not_compile_says_why_and_leaves_nothing(tiny_source, tmp_path):
    (tiny_source / "program.cpp").write_text("nonsense\n")
    with pytest.raises(BuildError, match=r"do not compile: .*program\.cpp:1"):
        built(tmp_path / "cache")
    assert [p.suffix for p in (tmp_path / "cache").iterdir()] == [".lock"]


@needs_compiler
def test_processes_that_start_together_build_once(tmp_path):
    code = "import sys, pathlib; from rayplane.kernels.build import built; print(built(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {p.communicate(timeout=170)[0].strip() for p in processes}
    assert len(paths) == 1 and Path(paths.pop()).is_file()
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_without_a_compiler_there_is_one_warning_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler .*apt-get install g\\+\\+") as caught:
        assert load(tmp_path) is None
    assert len(caught) == 1


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path, tiny_source):
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load(tmp_path / "file") is None


def test_the_sources_are_part_of_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    assert '"kernels/source/*"' in text
