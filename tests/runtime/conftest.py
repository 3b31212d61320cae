"""Every test's ranks can import the dummy entry module; every group ends with its test."""

from collections.abc import Iterator

import pytest
from dummies import PYTHONPATH

from rayplane.runtime.local import LocalGroup


@pytest.fixture(autouse=True)
def dummy_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.fixture
def group() -> Iterator[LocalGroup]:
    group = LocalGroup()
    yield group
    group.close()
