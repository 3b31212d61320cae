"""What the pages' tests share."""

import pytest
from browser import Browser, find


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium with one page."""
    if find() is None:
        pytest.skip("no chromium on PATH; on Debian: apt-get install chromium")
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()
