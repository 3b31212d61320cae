"""One step of serving as the model sees it: tokens of several sequences in a row, and where their keys and values are kept.

blocks of 4 tokens     sequence 0, 5 tokens known, 1 of them new      tables [[7, 2]]   slots [2 * 4 + 0]   lengths [5]
                       sequence 1, 3 tokens known, all new            tables [[5]]      slots [20, 21, 22]  lengths [3]
tokens [a, x, y, z]    starts [0, 1, 4]    positions [4, 0, 1, 2]     rows [0, 3]: logits of the last token of each
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class PagedStep:
    """T tokens of N sequences; W blocks at most in a table; R rows of logits."""

    tokens: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T]: of each token in its sequence."""
    slots: Tensor
    """int64 [T]: block * block size + offset, where a token's key and value go."""
    starts: Tensor
    """int32 [N + 1]: the first token of each sequence, and T."""
    lengths: Tensor
    """int32 [N]: tokens of each sequence, those of this step included; the new ones are its last."""
    tables: Tensor
    """int32 [N, W]: the blocks of each sequence in order; what is beyond its length is not read."""
    rows: Tensor
    """int64 [R]: tokens whose logits are wanted."""
