import subprocess
import sys

import pytest
from dummies import eventually, runs

from rayplane.runtime.guardian import descendants

OWNER = """
import subprocess, sys, time
from rayplane.runtime.guardian import guard
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
guard([left.pid])
print(left.pid, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(0)"])
def test_what_an_owner_leaves_behind_ends_with_it(then: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER.format(then=then)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        left = int(owner.stdout.readline())
        family = descendants(owner.pid) | {left}
        if then != "sys.exit(0)":
            assert runs(left) and len(family) == 2
            owner.kill()
    assert eventually(lambda: not any(map(runs, family)), 1.0)
