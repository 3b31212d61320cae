"""benchmarks/published_serving.py: a row is translated by general rules, and one that cannot be counts as a failure."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def row(**changed: Any) -> dict[str, Any]:
    of = {
        "source": {"title": "a test"},
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"gpu": "h100_sxm", "n_gpus": 2},
        "layout": {"tp": 2, "pp": 1},
        "dtype": "fp8",
        "isl": 1024,
        "osl": 128,
        "concurrency": 16.0,
        "backend": "vllm",
        "backend_version": "0.12.0",
        "measured": {"ttft_ms": 60.0, "tpot_ms": 5.0},
    }
    return {**of, **changed}


@pytest.fixture
def case_of(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from served_rows import case_of

    return case_of


def test_engines_differ_in_what_they_are_known_for(case_of):
    vllm, trtllm, sglang = (case_of(row(backend=name)) for name in ("vllm", "trtllm", "sglang"))
    assert (vllm.engine.overlapped, trtllm.engine.overlapped) == (False, True)
    assert (vllm.engine.reserve, trtllm.engine.reserve) == (0.0, 1.0)
    assert (vllm.served.formats.kv, trtllm.served.formats.kv) == ("bf16", "fp8")
    assert not vllm.engine.prefill_first
    assert case_of(row(backend="sglang", backend_version="0.5.1.post1")).engine.prefill_first
    assert not sglang.engine.prefill_first  # 0.12 is later than 0.5.4


def test_formats_come_from_dtype_device_and_publisher(case_of):
    assert case_of(row(dtype="")).served.formats.weights == "bf16"
    assert case_of(row(model="Qwen/Qwen3-32B")).served.formats.blocks
    assert not case_of(row(model="nvidia/Qwen3-32B-FP8")).served.formats.blocks
    assert case_of(row(hardware={"gpu": "b200_sxm", "n_gpus": 2})).served.formats.kv == "fp8"
    hopper = case_of(row(dtype="fp4")).served.formats
    assert (hopper.weights, hopper.compute) == ("fp4", "bf16")
    eight = {"hardware": {"gpu": "h100_sxm", "n_gpus": 8}, "layout": {"tp": 8, "pp": 1}}
    assert case_of(row(model="deepseek-ai/DeepSeek-R1", dtype="", **eight)).served.formats.weights == "fp8"


def test_devices_beyond_one_replica_are_more_of_them(case_of):
    case = case_of(row(hardware={"gpu": "H200", "n_gpus": 8}))
    assert (case.replicas, case.concurrency, case.kind.name) == (4, 4, "h200")


def test_ranks_that_share_experts_are_one_replica(case_of):
    eight = {"gpu": "H200", "n_gpus": 8}
    case = case_of(row(model="deepseek-ai/DeepSeek-R1", hardware=eight, layout={"tp": 1, "pp": 1, "dp": 8, "ep": 8}))
    assert (case.replicas, case.cut.ep, case.cut.attention_dp) == (1, 8, 8)


@pytest.mark.parametrize(
    ("gpu", "kind"),
    [
        ("H100", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100-96GB-HBM2e", "h100-96gb"),
        ("h200_sxm", "h200"),
        ("H20", "h20"),
        ("gb200", "gb200"),
        ("GB300", "gb300"),
        ("b200_sxm", "b200"),
        ("B300", "b300"),
        ("RTX-PRO-6000-BSE", "rtx-pro-6000"),
        ("a100_sxm", "a100-80gb"),
        ("L40S", "l40s"),
        ("MI300X", "mi300x"),
    ],
)
def test_a_gpu_is_found_by_its_usual_names(case_of, gpu, kind):
    assert case_of(row(hardware={"gpu": gpu, "n_gpus": 2})).kind.name == kind


def test_rows_that_cannot_be_priced_are_printed_and_counted(tmp_path):
    rows = [
        row(),
        row(model="someone/Unknown-9B"),
        row(hardware={"gpu": "Abacus", "n_gpus": 2}),
        row(model="Llama-3.1-405B"),
        row(concurrency=None, measured={"output_tokens_per_s_per_gpu": 4000}),
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    script = [sys.executable, BENCHMARKS / "published_serving.py", "--rows", tmp_path / "rows.json", "--by", "model", "--json"]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["priced"]) == (5, 2)
    assert 0 < found["ttft_mape"] < 100 and 1 < found["tpot_mape"] < 50 and found["tokens_mape"] > 1, "in percent"
    assert found["ttft_spearman"] is None, "an order of two is no order"
    for reason in ("no numbers of a model called 'someone/Unknown-9B'", "GPU Abacus is not in the catalog", "leave nothing of"):
        assert reason in done.stdout


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"hardware": None}, "TypeError"),
        ({"layout": {"tp": -1, "pp": 1}}, "degrees, isl and osl are at least 1"),
        ({"hardware": {"gpu": "h100_sxm", "n_gpus": 1}}, "a replica of 2 devices, on 1"),
        ({"osl": 0}, "degrees, isl and osl are at least 1"),
        ({"measured": {"ttft_ms": "soon"}}, "which nothing measures"),
        ({"measured": {}}, "none of time to first token"),
    ],
)
def test_nonsense_in_a_row_is_a_failure_with_a_reason(tmp_path, wrong, reason):
    (tmp_path / "rows.json").write_text(json.dumps([row(**wrong)]))
    script = [sys.executable, BENCHMARKS / "published_serving.py", "--rows", tmp_path / "rows.json", "--json"]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1])["priced"] == 0
    assert reason in done.stdout
