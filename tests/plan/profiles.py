"""Profiles of an imaginary device, by formulas of its own: what a fit has to find."""

from __future__ import annotations

from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.measured.probes import Yardstick, probes
from rayplane.plan.step import compute
from rayplane.plan.step.pieces import Ring, pieces
from rayplane.plan.step.share import parts, share
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.model import ModelSpec
from rayplane.spec.profile import Hardware, Profile, Versions

MODEL = ModelSpec(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1376, vocab=8192, name="reference")
ONE_LAYER = {"layers": 1, "vocab": 64}


def measured(cluster: ClusterSpec, truth: DeviceKind, link_bytes_s: float = 5e9, latency_s: float = 1e-4) -> Profile:
    """What `rayplane calibrate` would measure where every device is `truth` and its formulas hold exactly."""
    asked = probes(cluster, (Yardstick(MODEL, 256, ("fp32",)),), quick=False)
    rows = {kind: [{**row, **_seconds(kind, row, truth)} for row in of] for kind, of in asked.rows.items()}
    rows["collectives"] = [
        {"op": op, "size": g.size, "per_island": g.per_island, "bytes": n, "seconds": ways * (latency_s + n / g.size / link_bytes_s)}
        for g in asked.groups
        if g.axis != "pp"
        for n in asked.sizes
        for op, ways in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1))
    ]
    rows["messages"] = [{"inside": True, "bytes": n, "seconds": latency_s + n / link_bytes_s} for n in asked.sizes]
    return Profile.model_validate(
        {
            "date": "2026-11-30T09:00:00Z",
            "hardware": Hardware(device=truth.name, name="imaginary", nodes=1, devices=cluster.num_devices),
            "versions": Versions(rayplane="0", torch="0"),
            **{kind: tuple(of) for kind, of in rows.items()},
        }
    )


def _seconds(kind: str, row: dict, truth: DeviceKind) -> dict[str, float]:
    match kind:
        case "products":
            # Alone, a device is a tenth faster.
            speed = 1.1 if row["busy"] == 1 else 1.0
            of = _work(truth, MODEL, row["tokens"], 1).product_s(row["rows"], row["columns"])
            return {"forward_s": of.forward / speed, "input_grad_s": of.input_grad / speed, "weight_grad_s": of.weight_grad / speed}
        case "attention":
            heads = {"heads": row["heads"], "kv_heads": row["heads"], "head_dim": row["head_dim"]}
            model = ModelSpec(**ONE_LAYER, hidden=row["heads"] * row["head_dim"], **heads, mlp=64)
            forward_s, backward_s = compute.attention_s(_work(truth, model, row["samples"], row["seq_len"]))
            return {"forward_s": forward_s, "backward_s": backward_s}
        case "layers":
            return _layer(row, truth)
        case "heads":
            model = ModelSpec(1, row["hidden"], 1, 1, row["hidden"], 1, row["vocab"])
            return {"seconds": compute.head(_work(truth, model, row["tokens"], 1)).total}
        case "memory":
            return {"seconds": compute.memory_s(truth, row["bytes"])}
        case _:
            return {"seconds": compute.optimizer_s(truth, row["params"], "fp32", offload=False)}


def _layer(row: dict, truth: DeviceKind) -> dict[str, float]:
    shape = {name: row[name] for name in ("hidden", "heads", "kv_heads", "head_dim", "mlp")}
    work = _work(truth, ModelSpec(**ONE_LAYER, **shape), row["samples"], row["seq_len"], row["tp"], row["cp"])
    groups = Group(row["tp"], row["tp"]), Ring(Group(row["cp"], row["cp"]), "ring")
    piece = pieces(work, Network(truth.links, truth), *groups).layer
    both = piece.compute.plus(piece.tp).plus(piece.cp)
    return {"forward_s": both.forward, "backward_s": both.backward}


def _work(truth: DeviceKind, model: ModelSpec, samples: int, seq_len: int, tp: int = 1, cp: int = 1) -> compute.Microbatch:
    return compute.Microbatch(model, share(parts(model), tp), truth, "fp32", seq_len, samples, cp=cp)
