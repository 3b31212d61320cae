"""What the fullest rank of a tp group holds of each part of the model, by the same cut that the runtime makes (`spec.sharding`).

    9 heads, 3 KV heads over tp 2       rank 0: 5 heads, 2 KV heads       rank 1: 4 heads, 2 KV heads
    the step waits for rank 0, and memory must suffice on rank 0

Parts need not be fullest on the same rank; taking the fullest of each errs on the safe side by less than one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayplane.plan.step.pipe import stages_of
from rayplane.spec.layout import Layout, split
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import EMBED, TensorSpec, is_shared, tp_chunk


@dataclass(frozen=True, slots=True)
class Share:
    """Sizes on the fullest of `tp` ranks."""

    tp: int
    layer_params: int
    embed_params: int
    head_params: int
    """Final norm and head, or the second copy of a tied embedding."""
    tied_params: int
    """That second copy."""
    common_params: int
    """Of a layer, weights that tp ranks hold in common with a part of the gradient each: q, k and v where KV heads are shared."""
    uncut_params: int
    """Of a layer, norms and biases of the residual stream: the same holds for them under sp."""
    shapes: tuple[tuple[int, int], ...]
    """(rows, columns) of a layer's weights as they lie in memory: q with k and v, o, gate with up, down."""
    q_width: int
    kv_width: int
    mlp_width: int
    vocab_rows: int

    @property
    def stacked(self) -> tuple[int, ...]:
        """Elements of these weights."""
        return tuple(rows * columns for rows, columns in self.shapes)


@dataclass(frozen=True, slots=True)
class Parts:
    """The distinct tensors of a model: the embedding, those of one layer, and those after the last."""

    model: ModelSpec
    embed: tuple[TensorSpec, ...]
    layer: tuple[TensorSpec, ...]
    last: tuple[TensorSpec, ...]


def parts(model: ModelSpec) -> Parts:
    """The tensors to price; layers are alike, so one stands for all."""
    tensors = replace(model, layers=1).tensors()
    by_layer = [tuple(t for t in tensors if t.layer == where) for where in (EMBED, 0, 1)]
    return Parts(model, *by_layer)


def share(of: Parts, tp: int) -> Share:
    """What the fullest rank of a tp group holds."""
    layers = [tuple(tp_chunk(t, tp, i).numel for t in of.layer) for i in range(tp)]
    fullest = max(range(tp), key=lambda i: sum(layers[i]))
    sizes = dict(zip((t.name.rsplit(".", 1)[-1] for t in of.layer), layers[fullest], strict=True))
    hidden = of.model.hidden
    embed = sum(tp_chunk(t, tp, 0).numel for t in of.embed)
    tied = sum(tp_chunk(t, tp, 0).numel for t in of.embed if t.tied)
    last = sum(tp_chunk(t, tp, 0).numel for t in of.last)
    qkv, norms = sizes["q"] + sizes["k"] + sizes["v"], sizes.get("q_norm", 0) + sizes.get("k_norm", 0)
    uncut = sum(n for t, n in zip(of.layer, layers[fullest], strict=True) if not any(d.cut for d in t.dims)) - norms
    return Share(
        tp=tp,
        layer_params=sum(layers[fullest]),
        embed_params=embed,
        head_params=last + tied,
        tied_params=tied,
        common_params=(qkv if any(is_shared(t, tp) for t in of.layer) else 0) + (norms if tp > 1 else 0),
        uncut_params=uncut,
        shapes=(
            (qkv // hidden, hidden),
            (hidden, sizes["o"] // hidden),
            ((sizes["up"] + sizes.get("gate", 0)) // hidden, hidden),
            (hidden, sizes["down"] // hidden),
        ),
        q_width=sizes["q"] // hidden,
        kv_width=sizes["k"] // hidden,
        mlp_width=sizes["up"] // hidden,
        vocab_rows=split(of.model.vocab, tp, 0)[1],
    )


def stage_params(of: Share, layout: Layout, chunks: Sequence[int]) -> tuple[int, int]:
    """Parameters on the fullest rank of some chunks on one stage, in model order; where first and last chunk share a stage, the first
    holds a tied embedding. And of those, what zero leaves whole: each tp rank has a part of its gradient, summed over tp first.
    """
    first, last = chunks[0] == 0, chunks[-1] == layout.num_chunks - 1
    layers = sum([layout.boundaries[c] for c in chunks])
    params = layers * of.layer_params + first * of.embed_params + last * of.head_params
    if last and of.tied_params:
        ends = stages_of(layout)
        params -= of.tied_params if ends[0] == ends[-1] else 0
    return params, layers * (of.common_params + (of.uncut_params if layout.sp else 0))


def chunk_params(of: Share, layout: Layout, chunk: int) -> int:
    """Parameters on the fullest rank of a model chunk."""
    return stage_params(of, layout, (chunk,))[0]
