"""Any job file, read by the real loader, gives a plan whose numbers are numbers, or an error that names a field."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError, RayplaneError, SpecError
from rayplane.plan.choice.report import as_json, report
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import described
from rayplane.spec.load import load_job, load_model
from rayplane.spec.plan import Plan, Workload

LIMIT_S = 60
"""Far above what it takes, for slow machines."""
FIELD = re.compile(r"^(job\.yaml(:\d+)?: )?(model|train|layout|cluster|hardware)[\w.\[\]]*: |^job\.yaml:\d+: \w")

MODEL = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "mlp": 1376, "vocab": 8192, "max_seq": 4096}
TRAIN = {"steps": 10, "global_batch": 16, "data": {"path": ["corpus.npy"], "seq_len": 512}, "checkpoint": {"dir": "out"}}
NODES = [{"device": "h100-sxm", "devices": 8, "count": 2}]


class TooSlowError(Exception):
    """A plan took longer than anybody waits."""


@contextmanager
def in_time() -> Iterator[None]:
    """Raises TooSlowError after LIMIT_S."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def job(**sections: Any) -> dict[str, Any]:
    return {"name": "fuzz", "model": MODEL, "train": TRAIN, "cluster": {"nodes": NODES}, **sections}


def planned(document: object, folder: Path) -> Plan:
    """As `rayplane plan` makes it."""
    file = folder / "job.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    with in_time():
        spec = load_job(file)
        layout = None if spec.layout == "auto" else spec.layout
        assert spec.train is not None
        assert spec.cluster != "auto"
        return plan(load_model(spec.model), Workload.of(spec.train), described(spec.cluster), layout)


def numbers(value: object) -> Iterator[float]:
    """All numbers in plain data."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield float(value)


def sound(found: Plan) -> None:
    """Finite, not negative, placed on devices that are there, and printable."""
    told = as_json(found)
    assert all(math.isfinite(n) and n >= 0 for n in numbers([told[name] for name in ("step_s", "tokens_s", "mfu", "bubble", "memory")]))
    assert all(math.isfinite(n) for n in numbers(told["time_s"]))
    assert told["step_s"] > 0
    assert told["mfu"] < 1
    assert sum(found.layout.boundaries) > 0
    ranks = sorted(rank for slot in found.placement.slots for rank in slot.ranks)
    assert ranks == list(range(found.layout.size))
    assert report(found).ranked


def planned_or_told(document: object, folder: Path) -> None:
    """A sound plan, or errors of which each names its field and says something."""
    try:
        sound(planned(document, folder))
    except SpecError as error:
        assert all(FIELD.match(str(p).replace(f"{folder}/", "")) for p in error.problems), str(error)
    except PlacementError as error:
        assert re.search(r"would fit|missing|needs", str(error)), str(error)
    except RayplaneError as error:
        pytest.fail(f"an error of no kind that a plan has: {error!r}")


odd = st.sampled_from([0, -1, 1, 7, 1e30, 1e-30, -3.5, 0.0, math.nan, math.inf, -math.inf, 10**30, "", "many", None, True, [], {}])
counts = st.sampled_from([1, 2, 3, 5, 6, 7, 8, 13, 64, 72])
kinds = st.sampled_from(["a100-80gb", "h100-sxm", "cpu", "l4", "H200", "b200"])
links = st.fixed_dictionaries({"gbytes_s": st.sampled_from([1e-9, 0.1, 50, 1e30]), "latency_us": st.sampled_from([0, 1e-9, 7, 1e9])})


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


clusters = st.builds(
    lambda nodes, links: {"nodes": [{"name": f"n{i}", **n} for i, n in enumerate(nodes)], "links": links},
    st.lists(
        st.builds(
            lambda must, may: {**must, **may},
            st.fixed_dictionaries({"device": kinds, "devices": counts}),
            some(count=st.sampled_from([1, 2, 3]), island=st.sampled_from("xy"), memory_gb=st.sampled_from([0.001, 1, 24, 1e5])),
        ),
        min_size=1,
        max_size=3,
    ),
    some(island=links, node=links, fabric=links),
)
models = st.builds(
    lambda layers, heads, kv, dim, mlp, vocab: {
        **MODEL,
        "layers": layers,
        "heads": heads,
        "kv_heads": 1 if kv else heads,
        "head_dim": dim,
        "hidden": heads * dim,
        "mlp": mlp,
        "vocab": vocab,
    },
    st.sampled_from([1, 2, 3, 7, 13]),
    st.sampled_from([1, 2, 3, 7, 97]),
    st.booleans(),
    st.sampled_from([2, 64, 128, 1022]),
    st.sampled_from([1, 3, 1021, 53248]),
    st.sampled_from([1, 2, 257, 131071]),
)
trains = st.builds(
    lambda batch, length, precision: {
        **TRAIN,
        "global_batch": batch,
        "data": {**TRAIN["data"], "seq_len": length},
        "precision": precision,
    },
    st.sampled_from([1, 2, 7, 16, 1000]),
    st.sampled_from([1, 2, 3, 509, 4096]),
    st.sampled_from(["fp32", "bf16", "fp8"]),
)
degrees = st.sampled_from([1, 2, 3, 4, 7, 16, 100, 10**6])
layouts = st.just("auto") | some(
    dp=degrees,
    pp=degrees,
    cp=degrees,
    tp=degrees,
    sp=st.booleans(),
    vpp=st.sampled_from([1, 2, 3]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "zb-h1", "zbv"]),
    micro_batch=st.sampled_from([1, 3, 16, 10**9]),
    zero=st.integers(0, 3),
    shard=st.sampled_from([1, 2, 5]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_layers=st.sampled_from([1, 5]),
    cp_method=st.sampled_from(["ring", "gather"]),
    boundaries=st.lists(st.integers(0, 8), max_size=5),
)
fuzzed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(fuzzed, max_examples=30)
@given(clusters, models, trains)
def test_any_cluster_and_any_model_give_a_plan_or_an_error(
    tmp_path: Path, cluster: dict[str, Any], model: dict[str, Any], train: dict[str, Any]
) -> None:
    planned_or_told(job(cluster=cluster, model=model, train=train), tmp_path)


@settings(fuzzed, max_examples=120)
@given(clusters, models, trains, layouts)
def test_any_layout_gives_a_plan_or_an_error(
    tmp_path: Path, cluster: dict[str, Any], model: dict[str, Any], train: dict[str, Any], layout: object
) -> None:
    if layout != "auto":
        planned_or_told(job(cluster=cluster, model=model, train=train, layout=layout), tmp_path)


SPOTS = [
    *[("cluster", "nodes", 0, name) for name in ("device", "devices", "count", "name", "island", "memory_gb")],
    *[("cluster", "links", where, name) for where in ("island", "node", "fabric") for name in ("gbytes_s", "latency_us")],
    *[("model", name) for name in MODEL],
    *[("train", name) for name in ("global_batch", "precision", "data", "optimizer")],
    ("train", "data", "seq_len"),
    *[("layout", name) for name in ("dp", "pp", "cp", "tp", "vpp", "micro_batch", "zero", "shard", "boundaries", "schedule")],
    ("cluster", "nodes"),
    ("cluster",),
    ("layout",),
]


@settings(fuzzed, max_examples=150)
@given(st.sampled_from(SPOTS), odd)
def test_an_odd_value_anywhere_gives_a_plan_or_an_error(tmp_path: Path, spot: tuple[str | int, ...], value: object) -> None:
    link = {"gbytes_s": 50, "latency_us": 7}
    document: Any = job(cluster={"nodes": [dict(NODES[0])], "links": {w: dict(link) for w in ("island", "node", "fabric")}}, layout={})
    document = yaml.safe_load(yaml.safe_dump(document))
    inner = document
    for segment in spot[:-1]:
        inner = inner[segment]
    inner[spot[-1]] = value
    planned_or_told(document, tmp_path)
