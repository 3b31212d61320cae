"""Where published models keep the tensors of `ModelSpec.tensors()`.

here              Llama, Mistral, Qwen on Hugging Face          GPT-2 on Hugging Face                GGUF
embed             model.embed_tokens.weight                     transformer.wte.weight               token_embd.weight
layers.3.q        model.layers.3.self_attn.q_proj.weight        transformer.h.3.attn.c_attn.weight   blk.3.attn_q.weight
layers.3.o        model.layers.3.self_attn.o_proj.weight        transformer.h.3.attn.c_proj.weight   blk.3.attn_output.weight
layers.3.down     model.layers.3.mlp.down_proj.weight           transformer.h.3.mlp.c_proj.weight    blk.3.ffn_down.weight
norm              model.norm.weight                             transformer.ln_f.weight              output_norm.weight
head              lm_head.weight                                lm_head.weight                       output.weight

GPT-2 stacks q, k and v in one tensor, and on Hugging Face it keeps its layers' matrices transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as files keep it: part `part` of the `parts` equal ones that a stored tensor stacks by rows, perhaps transposed."""

    name: str
    part: int = 0
    parts: int = 1
    transposed: bool = False

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the stored tensor, given that of the tensor here."""
        rows = (shape[0] * self.parts, *shape[1:])
        return rows[::-1] if self.transposed else rows

    def box(self, chunk: Chunk, stored_shape: tuple[int, ...]) -> Chunk:
        """Where a box of the tensor lies in the stored one."""
        rows = stored_shape[-1 if self.transposed else 0] // self.parts
        offset, size = (chunk.offset[0] + self.part * rows, *chunk.offset[1:]), chunk.size
        return Chunk(offset[::-1], size[::-1]) if self.transposed else Chunk(offset, size)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one kind of file; tensors of a layer that share a name are stacked in it, in the order given here."""

    layers: str
    """Stands before a layer's index."""
    outer: Mapping[str, str]
    layer: Mapping[str, str]
    transposed: bool = False
    """Whether the matrices of layers are."""

    def stored(self, name: str) -> Stored:
        """Where the tensor `name` is kept."""
        place = in_layer(name)
        if place is None:
            return Stored(self.outer[name])
        index, local = place
        stored = self.layer[local]
        together = [n for n, other in self.layer.items() if other == stored]
        is_matrix = stored.endswith("weight") and not local.endswith("norm")
        return Stored(f"{self.layers}{index}.{stored}", together.index(local), len(together), self.transposed and is_matrix)


HF_LLAMA = Names(
    "model.layers.",
    MappingProxyType({"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}),
    MappingProxyType(
        {
            "attn_norm": "input_layernorm.weight",
            "q": "self_attn.q_proj.weight",
            "k": "self_attn.k_proj.weight",
            "v": "self_attn.v_proj.weight",
            "q_bias": "self_attn.q_proj.bias",
            "k_bias": "self_attn.k_proj.bias",
            "v_bias": "self_attn.v_proj.bias",
            "q_norm": "self_attn.q_norm.weight",
            "k_norm": "self_attn.k_norm.weight",
            "o": "self_attn.o_proj.weight",
            "o_bias": "self_attn.o_proj.bias",
            "mlp_norm": "post_attention_layernorm.weight",
            "gate": "mlp.gate_proj.weight",
            "gate_bias": "mlp.gate_proj.bias",
            "up": "mlp.up_proj.weight",
            "up_bias": "mlp.up_proj.bias",
            "down": "mlp.down_proj.weight",
            "down_bias": "mlp.down_proj.bias",
        }
    ),
)
HF_GPT2 = Names(
    "transformer.h.",
    MappingProxyType(
        {
            "embed": "transformer.wte.weight",
            "positions": "transformer.wpe.weight",
            "norm": "transformer.ln_f.weight",
            "norm_bias": "transformer.ln_f.bias",
            "head": "lm_head.weight",
        }
    ),
    MappingProxyType(
        {
            "attn_norm": "ln_1.weight",
            "attn_norm_bias": "ln_1.bias",
            "q": "attn.c_attn.weight",
            "k": "attn.c_attn.weight",
            "v": "attn.c_attn.weight",
            "q_bias": "attn.c_attn.bias",
            "k_bias": "attn.c_attn.bias",
            "v_bias": "attn.c_attn.bias",
            "o": "attn.c_proj.weight",
            "o_bias": "attn.c_proj.bias",
            "mlp_norm": "ln_2.weight",
            "mlp_norm_bias": "ln_2.bias",
            "up": "mlp.c_fc.weight",
            "up_bias": "mlp.c_fc.bias",
            "down": "mlp.c_proj.weight",
            "down_bias": "mlp.c_proj.bias",
        }
    ),
    transposed=True,
)
GGUF = Names(
    "blk.",
    MappingProxyType(
        {
            "embed": "token_embd.weight",
            "positions": "position_embd.weight",
            "norm": "output_norm.weight",
            "norm_bias": "output_norm.bias",
            "head": "output.weight",
        }
    ),
    MappingProxyType(
        {
            "attn_norm": "attn_norm.weight",
            "attn_norm_bias": "attn_norm.bias",
            "q": "attn_q.weight",
            "k": "attn_k.weight",
            "v": "attn_v.weight",
            "q_bias": "attn_q.bias",
            "k_bias": "attn_k.bias",
            "v_bias": "attn_v.bias",
            "q_norm": "attn_q_norm.weight",
            "k_norm": "attn_k_norm.weight",
            "o": "attn_output.weight",
            "o_bias": "attn_output.bias",
            "mlp_norm": "ffn_norm.weight",
            "mlp_norm_bias": "ffn_norm.bias",
            "gate": "ffn_gate.weight",
            "gate_bias": "ffn_gate.bias",
            "up": "ffn_up.weight",
            "up_bias": "ffn_up.bias",
            "down": "ffn_down.weight",
            "down_bias": "ffn_down.bias",
        }
    ),
)
QKV = MappingProxyType(
    {
        **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight"),
        **dict.fromkeys(("q_bias", "k_bias", "v_bias"), "attn_qkv.bias"),
    }
)
GGUF_GPT2 = Names(GGUF.layers, GGUF.outer, MappingProxyType({**GGUF.layer, **QKV}))


def in_layer(name: str) -> tuple[str, str] | None:
    """(layer index, name within the layer) of a layer's tensor; None for what lies outside the layers."""
    head, _, rest = name.partition(".")
    if head != "layers":
        return None
    index, _, local = rest.partition(".")
    return index, local


def hf_names(spec: ModelSpec) -> Names:
    """The names of a Hugging Face folder; GPT-2 is the one with learned positions."""
    return HF_GPT2 if spec.positions == "learned" else HF_LLAMA


def gguf_names(spec: ModelSpec) -> Names:
    """The names of a GGUF file."""
    return GGUF_GPT2 if spec.positions == "learned" else GGUF
