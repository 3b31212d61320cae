"""What the fullest rank of a tp group holds of each part of the model, by the same cut that the runtime makes (`spec.sharding`).

    9 heads, 3 KV heads over tp 2       rank 0: 5 heads, 2 KV heads       rank 1: 4 heads, 2 KV heads
    the step waits for rank 0, and memory must suffice on rank 0

Parts need not be fullest on the same rank; taking the fullest of each errs on the safe side by less than one unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.spec.layout import split
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import EMBED, TensorSpec, tp_chunk


@dataclass(frozen=True, slots=True)
class Share:
    """Sizes on the fullest of `tp` ranks."""

    tp: int
    matrices: tuple[int, ...]
    """Elements of each matrix of a layer, in model order."""
    layer_params: int
    embed_params: int
    head_params: int
    """Final norm and head; with a tied embedding that spans two stages, the second copy of it."""
    q_width: int
    kv_width: int
    mlp_width: int
    vocab_rows: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The distinct tensors of a model: the embedding, those of one layer, and those after the last."""

    model: ModelSpec
    embed: tuple[TensorSpec, ...]
    layer: tuple[TensorSpec, ...]
    last: tuple[TensorSpec, ...]


def parts(model: ModelSpec) -> Parts:
    """The tensors to price; layers are alike, so one stands for all."""
    tensors = model.tensors()
    by_layer = [tuple(t for t in tensors if t.layer == where) for where in (EMBED, 0, model.layers)]
    return Parts(model, *by_layer)


def share(of: Parts, tp: int) -> Share:
    """What the fullest rank of a tp group holds."""
    layers = [tuple(tp_chunk(t, tp, i).numel for t in of.layer) for i in range(tp)]
    fullest = max(range(tp), key=lambda i: sum(layers[i]))
    sizes = dict(zip((t.name.rsplit(".", 1)[-1] for t in of.layer), layers[fullest], strict=True))
    hidden = of.model.hidden
    embed = sum(tp_chunk(t, tp, 0).numel for t in of.embed)
    last = sum(tp_chunk(t, tp, 0).numel for t in of.last)
    return Share(
        tp=tp,
        matrices=tuple(n for t, n in zip(of.layer, layers[fullest], strict=True) if len(t.dims) > 1),
        layer_params=sum(layers[fullest]),
        embed_params=embed,
        head_params=last + (embed if of.model.tied else 0),
        q_width=sizes["q"] // hidden,
        kv_width=sizes["k"] // hidden,
        mlp_width=sizes["up"] // hidden,
        vocab_rows=split(of.model.vocab, tp, 0)[1],
    )


def stage_params(of: Share, tied: bool, boundaries: tuple[int, ...], stage: int) -> int:
    """Parameters on the fullest rank of a stage; one stage alone holds a tied embedding once."""
    pp = len(boundaries)
    first, last = stage == 0, stage == pp - 1
    params = boundaries[stage] * of.layer_params + first * of.embed_params + last * of.head_params
    return params - of.embed_params if tied and first and last else params
