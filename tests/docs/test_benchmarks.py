"""What benchmarks/train_peers.py compares is what it says: every column is a task that its system can be given."""

from pathlib import Path

import pytest

from rayplane.spec.layout import unsupported

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """The benchmarks' modules can be imported as their scripts import each other."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")


def test_every_column_is_a_whole_model_and_a_whole_batch_over_its_ranks(benchmarks, tmp_path):
    from columns import CASES
    from reference import GLOBAL_BATCH, SPEC
    from systems import task

    ranks = {"serial": 1, "pp2": 2, "tp2": 2, "dp2": 2}
    for case, columns in CASES.items():
        for column in columns():
            t = task(tmp_path, warmup=1, steps=1, **column.fields)
            assert t.dp * t.pp * t.tp == ranks[case], column
            assert (sum(t.boundaries), len(t.boundaries)) == (SPEC.layers, t.pp * t.vpp), column
            assert t.num_microbatches * t.micro_batch * t.dp == GLOBAL_BATCH, column
            assert (BENCHMARKS / "peers" / f"{column.system}_rank.py").exists()


def test_rayplane_runs_each_of_its_columns(benchmarks, tmp_path):
    from columns import CASES
    from rayplane_rank import layout_of
    from systems import task

    ours = [c for columns in CASES.values() for c in columns() if c.system == "rayplane"]
    assert len(ours) >= len(CASES)
    for column in ours:
        assert not unsupported(layout_of(task(tmp_path, warmup=1, steps=1, **column.fields))), column


def test_column_names_of_a_case_differ(benchmarks):
    from columns import CASES

    for columns in CASES.values():
        names = [c.name for c in columns()]
        assert len(names) == len(set(names))


def test_a_failed_run_is_told_in_its_own_error(benchmarks):
    from systems import reason

    stderr = "[rank0]: Traceback\n[rank0]: ValueError: no such layer\n\ntorch.distributed.elastic.ChildFailedError: \n====\n"
    assert reason(stderr) == "[rank0]: ValueError: no such layer"
