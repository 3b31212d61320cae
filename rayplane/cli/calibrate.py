"""`rayplane calibrate`: measures a cluster through the runtime, and keeps what it measured for the planner.

find the cluster ──▶ what to measure ──▶ a rank on every device, as for training ──▶ rows ──▶ profile
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import ray
import typer
from rich.console import Console
from rich.table import Table

import rayplane
from rayplane.cli.fleet import Runtime, device_type, this_machine
from rayplane.cli.profiles import path_of, write_profile
from rayplane.cli.screen import say, screen, show
from rayplane.cli.words import as_json, count
from rayplane.errors import RayplaneError
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import slowest
from rayplane.plan.measured.probes import Probes, Yardstick, merged, probes, usual
from rayplane.plan.step.profile import figures, with_profile
from rayplane.runtime.group import Launch, Message, WorkerGroup
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.patience import never
from rayplane.runtime.ray import RayGroup, Terms, connect, discover
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import TrainJob
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_model, load_training
from rayplane.spec.profile import Hardware, Profile, Versions, profile_text

ENTRY = "rayplane.train.calibration"
TIMEOUT_S = 600.0
POLL_S = 1.0
ALL_THEIRS = 0.9
"""What ranks should have of their devices, at least."""


def calibrate(
    job: Annotated[
        Path | None, typer.Argument(help="A job file whose model to measure; else shapes that are usual on the devices.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the profile; else where plan and run find it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure as little as will do.")] = False,
    runtime: Annotated[Runtime | None, typer.Option(help="Who starts the ranks; by default Ray where RAY_ADDRESS is set.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure kernels, collectives and messages on every device of the cluster of RAY_ADDRESS, else of this machine."""
    spec, console = load_training(job, "calibrate") if job else None, screen(stderr=json)
    chosen = runtime or (Runtime.RAY if os.environ.get("RAY_ADDRESS") else Runtime.LOCAL)
    with _open(chosen) as (cluster, group):
        path, begin = out or path_of(cluster), time.monotonic()
        write_profile(path, "", "--out")
        say(console, f"measuring on {cluster.num_devices} x {slowest(cluster).name}")
        profile, share_at_work = _measure(cluster, group, probes(cluster, _yardsticks(cluster, spec, quick), quick))
    write_profile(path, profile_text(profile), "--out")
    cluster = with_profile(cluster, profile)
    if json:
        typer.echo(as_json({"profile": str(path), **profile.model_dump(mode="json"), "figures": _figures(cluster, profile)}))
    else:
        _show(console, cluster, profile)
    if share_at_work < ALL_THEIRS:
        say(console, f"note: something else ran {1 - share_at_work:.0%} of the time; calibrate again when it has ended")
    say(console, f"measured in {time.monotonic() - begin:.0f} s; written to {path}")


@contextmanager
def _open(runtime: Runtime) -> Iterator[tuple[ClusterSpec, WorkerGroup]]:
    """The cluster, and a group that starts ranks on it."""
    with ExitStack() as closing:
        if runtime is Runtime.LOCAL:
            group: WorkerGroup = LocalGroup()
            closing.callback(group.close)
            yield this_machine(), group
        else:
            closing.callback(ray.shutdown)
            connect()
            cluster = discover()
            group = RayGroup(terms=Terms("anywhere", known=cluster.nodes))  # links between islands are measured too
            closing.callback(group.close)
            yield cluster, group


def _yardsticks(cluster: ClusterSpec, job: TrainJob | None, quick: bool) -> tuple[Yardstick, ...]:
    if job is None:
        return usual(slowest(cluster), quick)
    return (Yardstick(load_model(job.model), job.train.data.seq_len, (job.train.precision,)),)


def _measure(cluster: ClusterSpec, group: WorkerGroup, asked: Probes) -> tuple[Profile, float]:
    """Start a rank on every device, and gather what they measure; and the share of the time that their devices were theirs."""
    each = {node.devices for node in cluster.nodes}
    layout = Layout(dp=len(cluster.nodes), tp=each.pop()) if len(each) == 1 else Layout(dp=cluster.num_devices)
    config = {"probes": asdict(asked), "ranks": cluster.num_devices}
    group.start(Launch("calibrate", layout, place(layout, cluster), ENTRY, config, device_type(cluster)), never)
    rows, done = _gather(group, cluster.num_devices)
    of = merged(rows)
    fixed, work = of.pop("fixed", []), of.pop("work", [])
    profile = Profile.model_validate(
        {
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "hardware": Hardware(
                device=slowest(cluster).name, name=done["hardware"], nodes=len(cluster.nodes), devices=cluster.num_devices
            ),
            "versions": Versions(rayplane=rayplane.__version__, torch=done["torch"]),
            "fixed_bytes": max(row["bytes"] for row in fixed) if fixed else None,
            **{kind: tuple(rows) for kind, rows in of.items()},
        }
    )
    return profile, work[0]["cpu_s"] / work[0]["wall_s"] if work else 1.0


def _gather(group: WorkerGroup, ranks: int) -> tuple[list[tuple[str, dict[str, Any]]], Message]:
    """Rows of all ranks, and what the first to end says of its device. Raises RayplaneError when one fails."""
    rows: list[tuple[str, dict[str, Any]]] = []
    done: dict[int, Message] = {}
    end_s = time.monotonic() + TIMEOUT_S
    while len(done) < ranks:
        if time.monotonic() > end_s:
            missing = ", ".join(str(rank) for rank in range(ranks) if rank not in done)
            raise RayplaneError(f"ranks {missing} have not measured everything within {TIMEOUT_S:g} s; try --quick, or a smaller model")
        for item in group.poll(POLL_S):
            match item.message["type"]:
                case "measured":
                    rows.append((item.message["kind"], item.message["row"]))
                case "done":
                    done[item.rank] = item.message
                case "exit" if item.rank in done:
                    pass
                case _:
                    raise RayplaneError(f"rank {item.rank} could not measure: {_reason(item.message)}")
    return rows, done[0]


def _reason(message: Message) -> str:
    match message["type"]:
        case "failed":
            return str(message["message"])
        case "lost":
            return str(message["reason"])
        case _:
            return f"its process ended with code {message['code']}"


def _figures(cluster: ClusterSpec, profile: Profile) -> dict[str, list[dict[str, Any]]]:
    return {precision: [asdict(f) for f in figures(cluster, precision)] for precision in _precisions(profile)}


def _precisions(profile: Profile) -> list[str]:
    return list(dict.fromkeys(row.precision for row in profile.products))


def _show(console: Console, cluster: ClusterSpec, profile: Profile) -> None:
    precisions = _precisions(profile)
    table = Table("figure", *precisions, "unit", "source", box=None)
    for column in table.columns[1:-2]:
        column.justify = "right"
    for row in zip(*(figures(cluster, precision) for precision in precisions), strict=True):
        table.add_row(row[0].name, *(f"{f.value:.3g}" for f in row), row[0].unit, row[0].source)
    show(console, table)
    if profile.collectives or profile.messages:
        show(console, _network(profile))


def _network(profile: Profile) -> Table:
    """Milliseconds by shape of group and size."""
    kinds: list[tuple[str, str, int, float]] = [
        (row.op, f"{row.size}, {min(row.size, row.per_island)} an island", row.bytes, row.seconds) for row in profile.collectives
    ]
    kinds += [("message", "inside" if row.inside else "across", row.bytes, row.seconds) for row in profile.messages]
    sizes = sorted({num_bytes for _, _, num_bytes, _ in kinds})
    table = Table("ms", "ranks", *(f"{count(num_bytes)}B" for num_bytes in sizes), box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for shape in dict.fromkeys((op, ranks) for op, ranks, _, _ in kinds):
        took = {num_bytes: seconds for op, ranks, num_bytes, seconds in kinds if (op, ranks) == shape}
        table.add_row(*shape, *(f"{1e3 * took[n]:.3g}" if n in took else "" for n in sizes))
    return table
