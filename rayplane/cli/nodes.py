"""`rayplane nodes`: the machines of a cluster as the planner sees them, what is free, who holds the rest, and who waits.

rack r1
└── island nvl-1: 8 h100-sxm of 80 GB, 4 free
    ├── gpu-1  10.0.0.1  ■■■■  demo: 4   mlx5_0 mlx5_1 mlx5_2 mlx5_3
    └── gpu-2  10.0.0.2  □□□□
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import ray
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from rayplane.cli.fleet import Runtime, machine_here
from rayplane.cli.screen import say, screen
from rayplane.cli.words import as_json
from rayplane.runtime.hardware.machines import RACK_LABEL, nodes_of, topology_order
from rayplane.runtime.ray import connect
from rayplane.runtime.ray.survey import NodeState, Survey, survey
from rayplane.spec.cluster import Node

USED, FREE = "■", "□"
MOST_SQUARES = 16
"""Beyond so many devices of a node they are only counted."""


def nodes(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runtime: Annotated[
        Runtime | None, typer.Option(help="Whose machines: those of the Ray cluster of RAY_ADDRESS, if it is set, or this one.")
    ] = None,
) -> None:
    """Show nodes, islands, racks and devices: which are free, which job holds the others, and which jobs wait for some."""
    chosen = runtime or (Runtime.RAY if os.environ.get("RAY_ADDRESS") else Runtime.LOCAL)
    found = _of_cluster() if chosen is Runtime.RAY else here()
    if json:
        typer.echo(as_json(as_object(found)))
        return
    console = screen()
    for line in drawn(found, console):
        say(console, line)


def here() -> Survey:
    """This machine, without Ray; nobody reserves anything of it."""
    machine = machine_here()
    return Survey("CPU" if machine.kind == "cpu" else "GPU", (NodeState(machine, "", machine.devices),))


def _of_cluster() -> Survey:
    connect()
    try:
        return survey()
    finally:
        ray.shutdown()


def as_object(found: Survey) -> dict[str, Any]:
    """As plain data."""
    return {
        "resource": found.resource,
        "devices": sum(state.machine.devices for state in found.nodes),
        "free": sum(state.free for state in found.nodes),
        "nodes": [_node_object(state) for state in found.nodes],
        "waiting": [asdict(ticket) for ticket in found.waiting],
        "notes": list(found.notes),
    }


def _node_object(state: NodeState) -> dict[str, Any]:
    machine, hardware = state.machine, state.machine.hardware
    islands = _islands(state)
    gpus = [{**asdict(gpu), "nics": list(nics)} for gpu, nics in zip(hardware.gpus, hardware.nics, strict=True)] if hardware else []
    return {
        "name": machine.name,
        "address": state.address,
        "rack": islands[0].rack,
        "islands": [{"name": node.island, "devices": node.devices} for node in islands],
        "kind": machine.kind,
        "devices": machine.devices,
        "free": state.free,
        "held": dict(state.held),
        "memory_bytes": islands[0].memory_bytes,
        "gpus": gpus,
    }


def drawn(found: Survey, console: Console) -> Iterable[str]:
    """The lines of the picture, the line of those who wait, and notes."""
    free, devices = sum(s.free for s in found.nodes), sum(s.machine.devices for s in found.nodes)
    tree = Tree(f"{len(found.nodes)} node{'s' * (len(found.nodes) != 1)}, {devices} {found.resource}, {free} free")
    racks: dict[str, Tree] = {}
    branches: dict[str, Tree] = {}
    entries = sorted(((node, state) for state in found.nodes for node in _islands(state)), key=lambda e: topology_order(e[0]))
    for node, state in entries:
        if node.rack and node.rack not in racks:
            racks[node.rack] = tree.add(escape(f"rack {node.rack}"))
        if node.island not in branches:
            branches[node.island] = (racks[node.rack] if node.rack else tree).add(escape(_island(node.island, entries)))
        branches[node.island].add(escape(_line(node, state)))
    with console.capture() as capture:
        console.print(tree, highlight=False)
    yield from (line.rstrip() for line in capture.get().splitlines())
    for place, ticket in enumerate(found.waiting, 1):
        yield f"waiting {place}: {ticket.job}, priority {ticket.priority}, needs {ticket.needs}"
    yield from (f"note: {note}" for note in found.notes)


def _islands(state: NodeState) -> list[Node]:
    """What it is to the planner; a node without devices, or of an unknown kind, is by itself."""
    machine = state.machine
    if machine.devices and machine.kind:
        return list(nodes_of(machine))
    return [Node(machine.name, machine.devices, machine.kind, machine.name, machine.memory_bytes, machine.labels.get(RACK_LABEL, ""))]


def _island(name: str, entries: Sequence[tuple[Node, NodeState]]) -> str:
    own = [(node, state) for node, state in entries if node.island == name]
    devices, first = sum(node.devices for node, _ in own), own[0][0]
    if not devices:
        return f"{name}: no devices"
    what = f"{devices} x {first.kind or 'unknown'}" + (f" of {first.memory_bytes / 1e9:.3g} GB" if first.memory_bytes else "")
    return f"island {name}: {what}"


def _line(node: Node, state: NodeState) -> str:
    machine = state.machine
    parts = [machine.name, *([state.address] if state.address else [])]
    if not machine.devices:
        return "  ".join(parts)
    used = machine.devices - state.free
    squares = f"{USED * used}{FREE * state.free} " if machine.devices <= MOST_SQUARES else ""
    parts.append(f"{squares}{state.free} of {machine.devices} free")
    parts += [f"{job}: {amount}" for job, amount in state.held.items()]
    nics = _nics(node, state)
    return "  ".join([*parts, *([f"NICs {' '.join(nics)}"] if nics else [])])


def _nics(node: Node, state: NodeState) -> list[str]:
    """The nearest cards of an island's GPUs, each once."""
    hardware = state.machine.hardware
    if not hardware:
        return []
    part = next((p for p in state.machine.parts if node.island == f"{node.name}/{p[0]}"), None)
    of = zip(hardware.gpus, hardware.nics, strict=True)
    return list(dict.fromkeys(card for gpu, cards in of if part is None or gpu.index in part for card in cards))
