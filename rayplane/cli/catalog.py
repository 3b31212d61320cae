"""`rayplane catalog`: the models and the devices that job files may name.

model       parameters  layers  hidden  heads  KV heads  mlp    vocabulary  context
llama3-8b   8.03 B      32      4096    32     8         14336  128256      8192

device      memory  bandwidth  bf16        fp8          island    fabric   assumed
h100-sxm    80 GB   3350 GB/s  989 TFLOP/s 1979 TFLOP/s 450 GB/s  50 GB/s  5 figures
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from rayplane.cli.screen import say, screen, show
from rayplane.cli.words import as_json, count
from rayplane.plan.machine.catalog import DeviceKind, kinds
from rayplane.spec.load import load_model
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import preset_names


def catalog(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the models for model.preset, and the devices for cluster.nodes, with the figures that plans rest on."""
    models, devices = [load_model(ModelSection(preset=name)) for name in preset_names()], kinds()
    if json:
        typer.echo(as_json({"models": [_model(m) for m in models], "devices": [_device(d) for d in devices]}))
        return
    console = screen()
    show(console, _models(models))
    say(console, "")
    show(console, _devices(devices))
    say(console, "peaks are of dense products; bandwidths of island and fabric are per direction, as one device sees them")


def _models(models: list[ModelSpec]) -> Table:
    table = _table("model", "parameters", "layers", "hidden", "heads", "KV heads", "mlp", "vocabulary", "context")
    for m in models:
        numbers = (m.layers, m.hidden, m.heads, m.kv_heads, m.mlp, m.vocab, m.max_seq)
        table.add_row(m.name, count(m.num_params), *map(str, numbers))
    return table


def _devices(devices: tuple[DeviceKind, ...]) -> Table:
    table = _table("device", "memory", "bandwidth", "bf16", "fp8", "island", "fabric", "assumed")
    for d in devices:
        peaks = (f"{1e-12 * d.peak_flops[p]:.4g} TFLOP/s" if p in d.peak_flops else "-" for p in ("bf16", "fp8"))
        rates = (d.hbm_gbytes_s, d.links.island.gbytes_s, d.links.fabric.gbytes_s)
        bandwidth, island, fabric = (f"{rate:g} GB/s" for rate in rates)
        table.add_row(d.name, f"{d.memory_bytes / 1e9:g} GB", bandwidth, *peaks, island, fabric, f"{len(d.assumed)} figures")
    return table


def _table(*headers: str) -> Table:
    table = Table(*headers, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _model(model: ModelSpec) -> dict[str, Any]:
    names = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "max_seq", "tied")
    return {**{name: getattr(model, name) for name in names}, "params": model.num_params}


def _device(kind: DeviceKind) -> dict[str, Any]:
    links = {where: getattr(kind.links, where).gbytes_s for where in ("island", "node", "fabric")}
    return {
        "name": kind.name,
        "memory_bytes": kind.memory_bytes,
        "hbm_gbytes_s": kind.hbm_gbytes_s,
        "peak_flops": dict(kind.peak_flops),
        "gemm_efficiency": kind.gemm_efficiency,
        "links_gbytes_s": links,
        "assumed": sorted(kind.assumed),
    }
