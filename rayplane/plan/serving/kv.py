"""How much fits on a rank of a serving replica: weights, workspace, and what is left for keys and values.

weights       layers of a stage, embedding, head; in their formats
fixed         runtime, kernels, communicator buffers; activations of one step
cache         layers x (keys + values) a token, on the fullest rank          latent attention: one vector a token on every rank
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.served import BITS
from rayplane.plan.step.memory import gigabytes


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes on the fullest rank, and how many tokens of all sequences a replica can keep."""

    weights: int
    fixed: int
    token_bytes: float
    """What a token adds to the cache of one rank."""
    usable: int
    tokens: int

    @property
    def shortage(self) -> str:
        """What is missing for one token; empty where there is room."""
        if self.tokens > 0:
            return ""
        needed = f"weights {gigabytes(self.weights)} and workspace {gigabytes(self.fixed)}"
        return f"{needed} leave nothing of {gigabytes(self.usable)} for the cache"


def room(of: Replica, device_bytes: int) -> Room:
    """What a replica's fullest rank has to hold."""
    model, cut, formats, engine = of.served.model, of.cut, of.served.formats, of.engine
    layers = math.ceil(model.layers / cut.pp)
    attention = sum(of.part.attention)
    rest = of.part.layer_elements - attention
    layer = attention * BITS[formats.attention or formats.weights] / 8 + rest * BITS[formats.weights] / 8
    tables = of.part.head * BITS[formats.tables] / 8 * (2 if cut.pp == 1 and not model.tied else 1)
    weights = round(layers * layer + tables)
    logits = 4.0 * min(engine.max_sequences, 512) * model.vocab
    widest = max(2 * of.part.mlp_width, of.part.q_width + of.part.kv_width) + 4 * model.hidden
    fixed = of.device.fixed_bytes + round(2.0 * engine.chunk * widest + logits)
    token_bytes = layers * of.part.kv_width * BITS[formats.kv] / 8
    usable = round(device_bytes * engine.memory_share)
    tokens = math.floor((usable - weights - fixed) / token_bytes) * cut.cp * cut.attention_dp
    return Room(weights, fixed, token_bytes, usable, max(0, tokens))
