"""What the API's tests share."""

import pytest
from fake_engine import FakeEngine
from serving import Serving


@pytest.fixture
def serving():
    """One engine behind an ingress."""
    with Serving(FakeEngine()) as running:
        yield running
