"""What published models call the tensors of `ModelSpec.tensors()`.

here                 Hugging Face safetensors                         GGUF
embed                model.embed_tokens.weight                        token_embd.weight
layers.3.q           model.layers.3.self_attn.q_proj.weight           blk.3.attn_q.weight
layers.3.q_bias      model.layers.3.self_attn.q_proj.bias             blk.3.attn_q.bias
layers.3.o           model.layers.3.self_attn.o_proj.weight           blk.3.attn_output.weight
layers.3.down        model.layers.3.mlp.down_proj.weight              blk.3.ffn_down.weight
norm                 model.norm.weight                                output_norm.weight
head                 lm_head.weight                                   output.weight
"""

from __future__ import annotations

from types import MappingProxyType

HF_OUTER = MappingProxyType({"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"})
HF_LAYER = MappingProxyType(
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
        "mlp_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
    }
)
GGUF_OUTER = MappingProxyType({"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"})
GGUF_LAYER = MappingProxyType(
    {
        "attn_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "o": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
    }
)


def in_layer(name: str) -> tuple[str, str] | None:
    """(layer index, name within the layer) of a layer's tensor; None for what lies outside the layers."""
    head, _, rest = name.partition(".")
    if head != "layers":
        return None
    index, _, local = rest.partition(".")
    return index, local


def hf_name(name: str) -> str:
    """A tensor's name in Hugging Face's Llama, Qwen2 and Qwen3 models."""
    place = in_layer(name)
    return f"model.layers.{place[0]}.{HF_LAYER[place[1]]}" if place else HF_OUTER[name]


def gguf_name(name: str) -> str:
    """A tensor's name in a GGUF file of arch llama, qwen2 or qwen3."""
    place = in_layer(name)
    return f"blk.{place[0]}.{GGUF_LAYER[place[1]]}" if place else GGUF_OUTER[name]
