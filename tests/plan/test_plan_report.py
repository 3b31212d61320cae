"""What a user reads of a plan."""

import json
from dataclasses import replace

from rayplane.plan.choice.report import HEADERS, as_json, report, why
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Workload


def test_the_table_has_the_winner_first_and_every_refusal(
    reference: ModelSpec, reference_work: Workload, two_cpus: ClusterSpec
) -> None:
    found = plan(reference, reference_work, two_cpus, None)
    shown = report(found)
    print(*shown.ranked, shown.why, sep="\n")
    assert shown.ranked[0][0] == str(found.layout)
    assert len(shown.ranked) == 1 + len(found.runners_up)
    assert all(len(row) == len(HEADERS) for row in shown.ranked)
    assert len(shown.refused) == len(found.rejected)


def test_why_names_the_term_that_makes_the_difference(reference: ModelSpec, reference_work: Workload, two_cpus: ClusterSpec) -> None:
    shown = report(plan(reference, reference_work, two_cpus, None))
    assert shown.why.startswith("dp2 zero1 mb8 takes ")
    assert " less than pp2 interleaved vpp3 mb2 1+1+3x2+0: " in shown.why
    assert "bubble -" in shown.why
    assert "dp +" in shown.why


def test_why_says_what_is_faster_but_tight(llama3_8b: ModelSpec, llama_work: Workload, h100s_64: ClusterSpec) -> None:
    found = plan(llama3_8b, llama_work, h100s_64, None)
    quick = replace(found.estimate, step_s=found.estimate.step_s - 1, memory_bytes=73_500_000_000, verdict="tight")
    tight = Candidate(Layout(dp=64), quick)
    assert why(replace(found, runners_up=(tight, *found.runners_up))).startswith(
        "dp64 mb1 would take 1.00 s a step less, but is tight: 73.5 GB; dp64 zero2 mb1 takes "
    )


def test_idle_devices_and_their_cause_are_said(reference: ModelSpec, reference_work: Workload, two_cpus: ClusterSpec) -> None:
    alone = plan(reference, Workload(1, 256, "fp32"), homogeneous({"a": 97}, "cpu", 4 * 10**9, {}), None)
    assert report(alone).notes[0].startswith(f"uses {alone.layout.size} of 97 devices: with all of them, ")
    asked = plan(reference, reference_work, two_cpus, LayoutSection())
    assert report(asked).notes == ("uses 1 of 2 devices, as the job's layout asks",)


def test_tp_over_the_fabric_is_said(reference: ModelSpec, reference_work: Workload) -> None:
    apart = homogeneous({"a": 1, "b": 1}, "cpu", 4 * 10**9, {})
    assert report(plan(reference, reference_work, apart, LayoutSection(tp=2))).notes == (
        "tp 2 leaves an island, so its collectives run over the fabric",
    )


def test_cp_over_the_fabric_is_no_tp_over_the_fabric(reference: ModelSpec, reference_work: Workload) -> None:
    islands = homogeneous({"a": 2, "b": 2}, "cpu", 4 * 10**9, {})
    assert report(plan(reference, reference_work, islands, LayoutSection(cp=2, tp=2))).notes == ()


def test_json_holds_what_programs_read(reference: ModelSpec, reference_work: Workload, two_cpus: ClusterSpec) -> None:
    found = plan(reference, reference_work, two_cpus, None)
    data = json.loads(json.dumps(as_json(found)))
    assert data["layout"]["dp"] == 2
    assert data["step_s"] == found.estimate.step_s
    assert data["evaluated"] == 1 + len(data["runners_up"]) + len(data["rejected"])
    assert data["placement"][0]["ranks"] == [0]
    assert {"tokens_s", "mfu", "bubble", "memory", "memory_bytes", "verdict", "time_s", "why"} <= data.keys()
