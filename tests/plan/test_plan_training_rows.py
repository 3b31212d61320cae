"""benchmarks/published_runs.py, published_memory.py: rows are translated by general rules, and what cannot be is counted and said."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rows_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("published_rows")


@pytest.fixture
def scores_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("published_scores")


def row(
    layout: dict[str, Any] | None = None, model: dict[str, Any] | None = None, hardware: dict[str, Any] | None = None, **changed: Any
) -> dict[str, Any]:
    sizes = {"layers": 24, "hidden": 2304, "heads": 24, "kv_heads": 24, "ffn": 9216, "vocab": 51200, "seq": 2048}
    degrees = {"tp": 1, "pp": 1, "vpp": None, "cp": 1, "dp": 32, "sp": False, "micro_batch": 16, "global_batch": 512}
    of = {
        "id": "a:row",
        "source": {"title": "a test", "ref": "arXiv:2409.04473"},
        "model": {"name": "gpt", **sizes, "gated_mlp": False, "moe": False, "tied_embeddings": True, **(model or {})},
        "hardware": {"gpu": "A100-SXM-80GB", "gpus_per_node": 8, "inter_node_gbps_per_gpu": 200, "n_gpus": 32, **(hardware or {})},
        "dtype": "bf16",
        "layout": {**degrees, "recompute": "full", "zero": 0, **(layout or {})},
        "measured": {"step_time_s": 3.5},
        "core": True,
        "kind": "pretrain",
        "notes": None,
    }
    return {**of, **changed}


def answer(script: str, rows: list[dict[str, Any]], tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    command = [sys.executable, str(BENCHMARKS / script), "--rows", str(file), "--json", *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1]), out


@pytest.mark.parametrize(
    ("source", "year"),
    [
        ({"title": "x", "ref": "arXiv:2104.04473"}, 2020),
        ({"title": "x", "ref": "arXiv:2311.05610"}, 2023),
        ({"title": "README (2022)"}, 2022),
        ({"title": "docs (24.07)"}, 2024),
        ({"title": "benchmarks", "ref": "runs_202506.md"}, 2025),
        ({"title": "no date"}, 2022),
    ],
)
def test_the_year_is_read_from_what_the_source_says_of_itself(rows_module: Any, source: dict[str, str], year: int) -> None:
    assert rows_module.year_of(row(source=source, dtype="fp16")) == year


def test_what_software_did_follows_from_year_device_layout_and_notes(rows_module: Any) -> None:
    def practice(year: int, **changed: Any) -> Any:
        return rows_module.case_of(row(source={"title": str(year)}, **changed)).practice

    old, new = practice(2021, dtype="fp16"), practice(2025)
    assert (old.attention, old.dropout, old.overlap_dp, old.gradient_bytes) == ("unfused", True, False, 2)
    assert (new.attention, new.dropout, new.overlap_dp, new.gradient_bytes) == ("flash2", False, True, 4)
    assert practice(2021, model={"seq": 8192}).attention == "flash2", "nobody holds the scores of so long a sequence"
    assert practice(2025, hardware={"gpu": "H100-SXM-80GB"}).attention == "flash"
    assert practice(2023, notes="attention kernel=torch; …").attention == "eager"
    sharded = practice(2024, layout={"zero": 3})
    assert sharded.overlap_dp and sharded.gathered_copies and sharded.selective_products


def test_layouts_keep_what_the_row_says_and_try_what_it_leaves_open(rows_module: Any) -> None:
    (plain,) = rows_module.case_of(row()).layouts
    assert (plain.dp, plain.micro_batch, plain.recompute, plain.boundaries) == (32, 16, "full", (24,))
    pipe = {"pp": 4, "dp": 8, "vpp": 2, "zero": 2}
    (piped,) = rows_module.case_of(row(layout=pipe, model={"layers": 22})).layouts
    assert (piped.schedule, piped.vpp, piped.zero, piped.boundaries) == ("interleaved", 2, 1, (2, 3, 3, 3, 3, 3, 3, 2))
    opened = rows_module.case_of(row(layout={"recompute": None})).layouts
    assert {x.recompute for x in opened} == {"none", "selective", "full"}
    assert len(rows_module.case_of(row(layout={"micro_batch": None, "dp": 2}, hardware={"n_gpus": 2})).layouts) > 4


def test_rows_are_priced_and_failures_counted_with_their_reason(tmp_path: Path) -> None:
    odd = row(hardware={"gpu": "TPUv4"})
    expert = row(model={"moe": True})
    known = row(source={"title": "a test", "ref": "arXiv:2104.04473"}, dtype="fp16")
    broken = row(layout={"tp": "two"})
    found, out = answer("published_runs.py", [known, row(measured={}), odd, expert, broken], tmp_path, "--by", "source")
    assert (found["rows"], found["priced"]) == (5, 1)
    assert {"mape", "median", "p90", "bias", "spearman", "macro_mape"} <= found.keys()
    assert found["mape"] < 15, "1.7 billion parameters took 3.5 s a step"
    for reason in (
        "GPU TPUv4 is not in the catalog",
        "a mixture of experts",
        "neither step time nor FLOP/s was measured",
        "of another kind",
    ):
        assert reason in out


def test_peaks_and_labels_are_judged(tmp_path: Path) -> None:
    peak = row(kind="peak per GPU", memory_gb=40.0)
    fits = row(kind="feasibility label (fits) on 80 GB")
    oom = row(kind="feasibility label (OOM) on 80 GB", layout={"recompute": "none"})
    formula = row(kind="model states only, formula")
    found, out = answer("published_memory.py", [peak, fits, oom, formula], tmp_path)
    assert "1 of 4 rows are no measurement of memory" in out
    assert (found["priced"], found["peaks"], found["labels"]) == (3, 1, 2)
    assert (found["label_accuracy"], found["oom_caught"], found["fits_refused"]) == (100, 100, 0)


def test_scores_tell_order_from_size(scores_module: Any) -> None:
    def pairs(predicted: list[float]) -> list[Any]:
        return [scores_module.Pair(str(i), "s", (), p, float(i + 1)) for i, p in enumerate(predicted)]

    twice = pairs([2.0, 4.0, 6.0, 8.0, 10.0])
    assert scores_module.errors(twice)["mape"] == pytest.approx(100)
    assert scores_module.choices(twice) == {"groups": 1, "tau": 1.0, "regret_mean": 0.0, "regret_max": 0.0}
    backwards = scores_module.choices(pairs([5.0, 4.0, 3.0, 2.0, 1.0]))
    assert (backwards["tau"], backwards["regret_mean"]) == (-1.0, pytest.approx(400))
    few = scores_module.choices(pairs([1.0, 2.0]))
    assert few == {"groups": 0, "tau": None, "regret_mean": None, "regret_max": None}, "too few to choose among"
    assert scores_module.spearman([1.0, 2.0, 2.0], [1.0, 3.0, 3.0]) == pytest.approx(1.0)


def broken(script: str) -> list[Any]:
    """Rows of which no planner could make anything, each wrong in its own way."""
    rows: list[Any] = [5, None, {}, row(hardware={"n_gpus": 3}), row(layout={"tp": 7}), row(layout={"pp": -2}), row(dtype=None)]
    rows += [row(model={"heads": 0}), row(model={"kv_heads": 7}), row(layout={"recompute": 7}), row(layout={"micro_batch": 10**9})]
    if script == "published_runs.py":
        return [*rows, *(row(measured={"step_time_s": s}) for s in (-1, "soon", float("nan")))]
    return [*rows, *(row(kind="peak per GPU", memory_gb=n) for n in (0, None, "much")), row(kind="hearsay"), row(kind=None)]


@pytest.mark.parametrize("script", ["published_runs.py", "published_memory.py"])
def test_nonsense_in_a_row_is_a_failure_with_a_reason_and_its_name(script: str, tmp_path: Path) -> None:
    bad = [{**r, "id": f"bad-{i}"} if isinstance(r, dict) and r else r for i, r in enumerate(broken(script))]
    found, out = answer(script, [row(id="good", kind="peak per GPU", memory_gb=40.0), *bad], tmp_path)
    assert (found["rows"], found["priced"]) == (1 + len(bad), 1)
    told = [line for line in out.splitlines() if line.startswith("not priced")]
    assert all(any(r["id"] in line for line in told) for r in bad if isinstance(r, dict) and r)
    assert "tp x pp x dp x cp is 32, on 3 devices" in out
    assert "which nothing measures" in out
    assert script == "published_runs.py" or "kind 'hearsay' is neither a peak nor a label" in out


@pytest.mark.parametrize("script", ["published_runs.py", "published_memory.py", "published_serving.py"])
def test_every_key_is_there_when_there_is_nothing_to_compare(script: str, tmp_path: Path) -> None:
    keys = {
        "published_runs.py": ("mape", "median", "p90", "bias", "spearman", "macro_mape", "tau", "regret_mean", "regret_max"),
        "published_memory.py": ("peak_mape", "label_accuracy", "oom_caught", "fits_refused"),
        "published_serving.py": ("ttft_mape", "tpot_mape", "tokens_mape"),
    }[script]
    found, _ = answer(script, [], tmp_path)
    assert {key: found[key] for key in ("rows", "priced", *keys)} == {"rows": 0, "priced": 0, **dict.fromkeys(keys)}
