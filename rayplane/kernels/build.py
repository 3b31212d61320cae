"""Builds the C++ ops of this folder with the machine's own compiler, once per source, compiler, CPU and torch.

    ~/.cache/rayplane/kernels/<key>.so      key = sha256(sources, compiler, flags, CPU, torch)

A lock keeps ranks that start together from building it twice; it is complete or absent, as it gets its name last.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock

from rayplane.errors import RayplaneError

SOURCE = Path(__file__).parent / "source"
CACHE = Path(".cache") / "rayplane" / "kernels"
"""In the user's home."""
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("g++", "c++", "clang++")
BUILD_S = 300.0


class BuildError(RayplaneError):
    """The ops cannot be built here; says why, and how to make it possible."""


def built(cache: Path | None = None) -> Path:
    """The library for this machine, built now if it is not there. BuildError without a compiler or a place to keep it."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)}); install one: apt-get install g++")
    try:
        folder = Path.home() / CACHE if cache is None else cache
        library = folder / f"{_key(compiler)}.so"
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(library.with_suffix(".lock"), timeout=BUILD_S):
                if not library.exists():
                    _build(compiler, library)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise BuildError(f"the C++ ops cannot be kept in {CACHE} of the home folder ({error}); make it writable") from error
    return library


def _build(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
        compiled, linked = Path(scratch) / "program.o", Path(scratch) / "program.so"
        _run([compiler, *FLAGS, *_wide(), "-c", str(SOURCE / "program.cpp"), "-o", str(compiled)])
        _run([compiler, "-shared", str(compiled), *_openmp(), "-o", str(linked)])
        linked.rename(library)


def _wide() -> list[str]:
    """Compilers use half of AVX-512's registers unless they are told."""
    return ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []


def _openmp() -> list[str]:
    """torch's own OpenMP where it brings one: two in a process would keep two teams of threads, each in the other's way."""
    libraries = Path(torch.__file__).parent / "lib"
    own = next(iter(sorted(libraries.glob("libgomp*.so*"))), None)
    return ["-fopenmp"] if own is None else [str(own), f"-Wl,-rpath,{libraries}"]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the C++ compiler was not done after {BUILD_S:.0f} s: {' '.join(command)}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise BuildError("the C++ ops do not compile: " + (lines[0] if lines else "no message") + f"\n{' '.join(command)}")


def _key(compiler: str) -> str:
    """What the library depends on, as a name for it."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=BUILD_S, check=False).stdout
    parts = [version, *FLAGS, platform.machine(), _cpu(), torch.__version__]
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".cpp", ".hpp"))
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """What the CPU can do, in Linux's words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")
