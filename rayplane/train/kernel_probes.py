"""Seconds of the kernels that a training step is made of, on one rank: the runtime's own code, at the shapes that are asked for.

Each function takes what to measure as a profile's row without its seconds (`spec.profile`), and returns the seconds by name.
Operands and weights are more than the caches hold, as they are in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from rayplane.comm.mesh import Mesh
from rayplane.model.layers import Place
from rayplane.model.loss import Head
from rayplane.model.matmul import add_product, linear
from rayplane.model.parameter import GradWork, Weight
from rayplane.model.transformer import ModelChunk
from rayplane.spec.job import OptimizerSection
from rayplane.spec.layout import zigzag
from rayplane.spec.model import ModelSpec
from rayplane.train.build import DTYPES
from rayplane.train.gradients import Gradients
from rayplane.train.optim import Optimizer
from rayplane.train.stopwatch import Lap, Stopwatch

Tensor = torch.Tensor
Row = Mapping[str, Any]
CACHE_BYTES = 64 << 20
"""More than a device's caches hold."""
MOST_COPIES = 8
VOCAB = 64
"""Of layers without embedding or head."""


def product(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """A matrix product and the two of its backward; that of the weight adds to its gradient where it can do so itself, in fp32."""
    tokens, rows, columns, dtype = row["tokens"], row["rows"], row["columns"], DTYPES[row["precision"]]
    used = dtype.itemsize * (tokens * (rows + columns) + rows * columns) + 4 * rows * columns
    add = add_product if dtype == torch.float32 else lambda _, a, b: a @ b
    first = _operands(tokens, rows, columns, dtype, mesh.device)
    copies = [first, *(tuple(t.clone() for t in first) for _ in range(_copies(used) - 1))]
    return {
        "forward_s": watch.median_s(*(lambda c=c: linear(c[0], c[1]) for c in copies)),
        "input_grad_s": watch.median_s(*(lambda c=c: linear(c[2], c[1].t()) for c in copies)),
        "weight_grad_s": watch.median_s(*(lambda c=c: add(c[3], c[2].t(), c[0]) for c in copies)),
    }


def attention(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """Causal attention, forward and backward."""
    shape = (row["samples"], row["seq_len"], row["heads"], row["head_dim"])
    q, k, v = (_random(shape, DTYPES[row["precision"]], mesh.device).requires_grad_() for _ in range(3))
    dout = _random((shape[0], shape[2], shape[1], shape[3]), q.dtype, mesh.device)

    def body(lap: Lap) -> None:
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        lap()
        torch.autograd.grad(out, (q, k, v), dout)
        lap()

    return dict(zip(("forward_s", "backward_s"), watch.laps_s(body), strict=True))


def layer(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """One of several layers, as a stage runs them; under tp and cp with their communication."""
    chunk, work, gradients = _chunk(row, mesh)
    count = len(chunk.blocks)
    num_tokens = row["samples"] * chunk_tokens(row["seq_len"], mesh)
    x = _random((num_tokens, row["hidden"]), DTYPES[row["precision"]], mesh.device).requires_grad_()
    dy = _random(x.shape, x.dtype, mesh.device)

    def body(lap: Lap) -> None:
        y = chunk(x, row["samples"], row["seq_len"])
        lap()
        torch.autograd.backward(y, dy)
        work.run()
        lap()
        x.grad = None

    # Ranks that meet in a layer must run it equally often.
    meets = mesh.tp.size * mesh.cp.size > 1
    times = agreed(mesh, watch.times_for(body)) if meets else 0
    forward_s, backward_s = (s / count for s in watch.laps_s(body, times))
    gradients.zero()
    return {"forward_s": forward_s, "backward_s": backward_s}


def head(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """Head and loss with their gradients."""
    spec = ModelSpec(1, row["hidden"], 1, 1, row["hidden"], 1, row["vocab"])
    place = Place(mesh.tp, mesh.cp, GradWork(defer=False), DTYPES[row["precision"]])
    module = Head(place, next(t for t in spec.tensors() if t.name == "head"))
    _settle_weights(module, mesh.device)
    module.weight.main_grad = torch.zeros(module.weight.shape, device=mesh.device)
    x = _random((row["tokens"], row["hidden"]), place.dtype, mesh.device).requires_grad_()
    targets = torch.randint(row["vocab"], (row["tokens"],), device=mesh.device)
    return {"seconds": watch.median_s(lambda: torch.autograd.backward(module.loss(x, targets, 1.0 / row["tokens"])))}


def memory(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """The sum of two tensors into a third."""
    a, b, out = (torch.zeros(row["bytes"] // 12, device=mesh.device) for _ in range(3))
    return {"seconds": watch.median_s(lambda: torch.add(a, b, out=out))}


def optimizer(row: Row, mesh: Mesh, watch: Stopwatch) -> dict[str, float]:
    """The global norm and AdamW's step."""
    width = 1024
    layers = max(1, row["params"] // (7 * width * width))
    numbers = {"hidden": width, "heads": 8, "kv_heads": 8, "head_dim": width // 8, "mlp": width, "precision": "fp32"}
    chunk, _, gradients = _chunk({**numbers, "layers": layers}, mesh)
    update = Optimizer([gradients], OptimizerSection(), mesh)
    params = sum(w.numel() for w in chunk.weights())

    def step() -> None:
        update.square_norm().item()
        update.step(1e-4, 1.0)

    return {"params": params, "seconds": watch.median_s(step)}


def chunk_tokens(seq_len: int, mesh: Mesh) -> int:
    """Tokens of a sequence on this rank."""
    return sum(size for _, size in zigzag(seq_len, mesh.cp.size, mesh.cp.rank))


def agreed(mesh: Mesh, times: int) -> int:
    """The same number on all ranks: the largest."""
    return int(mesh.world.all_reduce(torch.tensor([times], device=mesh.device), "max").item())


def _chunk(row: Row, mesh: Mesh) -> tuple[ModelChunk, GradWork, Gradients]:
    """Some layers between others, their weight-gradient work and their gradients."""
    numbers = {name: row[name] for name in ("hidden", "heads", "kv_heads", "head_dim", "mlp")}
    spec = ModelSpec(layers=1, vocab=VOCAB, **numbers)
    per_layer = sum(t.numel for t in spec.tensors() if t.layer == 0) // mesh.tp.size
    layers = row.get("layers") or _copies(8 * per_layer)
    spec = ModelSpec(layers=layers, vocab=VOCAB, **numbers)
    work = GradWork(defer=mesh.tp.size > 1)
    chunk = ModelChunk(Place(mesh.tp, mesh.cp, work, DTYPES[row["precision"]]), spec, range(layers), first=False, last=False)
    _settle_weights(chunk, mesh.device)
    units = [[w for w in module.parameters() if isinstance(w, Weight)] for module, _ in chunk.units()]
    gradients = Gradients(units, dict.fromkeys(chunk.weights(), 1), set(), mesh)
    for w in chunk.weights():
        w.data.normal_(0.0, 0.02) if w.dim() > 1 else w.data.fill_(1.0)
    return chunk, work, gradients


def _settle_weights(module: torch.nn.Module, device: torch.device) -> None:
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, dtype=parameter.dtype, device=device).mul_(0.02)


def _operands(tokens: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """x, W, the gradient of x W^T, and that of W."""
    shapes = ((tokens, columns), (rows, columns), (tokens, rows))
    return (*(_random(shape, dtype, device) for shape in shapes), torch.zeros((rows, columns), device=device))


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _copies(num_bytes: int) -> int:
    """So many of them are more than the caches hold."""
    return max(1, min(MOST_COPIES, -(-CACHE_BYTES // num_bytes)))


PROBES: Mapping[str, Callable[[Row, Mesh, Stopwatch], dict[str, float]]] = {
    "products": product,
    "attention": attention,
    "layers": layer,
    "heads": head,
    "memory": memory,
    "optimizer": optimizer,
}
"""By the profile's name for the rows."""
