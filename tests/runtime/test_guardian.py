import os
import subprocess
import sys
import time

import pytest
from dummies import descendants, eventually, runs

from rayplane.runtime.guardian import LOOK_S, MARK, end, guarded

SLEEP = "import time; time.sleep(600)"
OWNER = """
import subprocess, sys, time
from rayplane.runtime.guardian import guarded
before = subprocess.Popen([sys.executable, "-c", "{sleep}"])
with guarded():
    left = subprocess.Popen([sys.executable, "-c", "{nested}"], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(before.pid, left.pid, left.stdout.readline(), flush=True)
{then}
"""
NESTED = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', '{SLEEP}']).pid, flush=True); time.sleep(600)"


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(0)"])
def test_what_is_started_under_guard_ends_with_its_owner(then: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(sleep=SLEEP, nested=NESTED, then=then)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        before, left, nested = map(int, owner.stdout.readline().split())
        if then != "sys.exit(0)":
            assert runs(left) and runs(nested) and len(descendants(owner.pid)) == 4
            owner.kill()
    assert eventually(lambda: not runs(left) and not runs(nested), 3.0)
    assert runs(before)
    os.kill(before, 9)


def test_a_process_whose_owner_died_while_it_was_being_started_ends_too() -> None:
    """As a killed driver of an embedded Ray leaves its first server: nobody has told the guardian of it."""
    owner = f"""
import os, subprocess, sys
from rayplane.runtime.guardian import guarded
with guarded():
    left = subprocess.Popen([sys.executable, "-c", "{SLEEP}"])
    print(left.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True, check=False)
    left = int(done.stdout)
    assert eventually(lambda: not runs(left), 3.0)


def test_a_process_that_has_lost_its_mark_ends_too_and_one_from_before_the_guard_does_not() -> None:
    """As Ray's agents, which write their title over their environment, and whose server dies with the driver."""
    nested = NESTED.replace("time.sleep(600)']", "time.sleep(600)'], env={{}}")
    owner = f"""
import os, subprocess, sys, time
from rayplane.runtime.guardian import guarded
before = subprocess.Popen([sys.executable, "-c", "{SLEEP}"], stdout=subprocess.DEVNULL)
with guarded():
    server = subprocess.Popen([sys.executable, "-c", {nested.format()!r}], stdout=subprocess.PIPE, text=True)
    print(before.pid, server.stdout.readline(), flush=True)
    time.sleep({3 * LOOK_S})
    server.kill()
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True, check=False)
    before, agent = map(int, done.stdout.split())
    assert eventually(lambda: not runs(agent), 3.0)
    assert runs(before)
    os.kill(before, 9)


def test_the_mark_is_gone_from_the_environment_behind_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "of an owner above")
    with guarded() as mark:
        assert os.environ[MARK] == mark
        left = subprocess.Popen([sys.executable, "-c", SLEEP])
    assert os.environ[MARK] == "of an owner above"
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    began_s = time.monotonic()
    end(mark)
    assert left.wait(1) == -9 and time.monotonic() - began_s < 5
    assert other.poll() is None
    other.kill()
    other.wait()
