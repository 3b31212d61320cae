"""Ranks offer queries and merge what all say of them: C++ and torch alike."""

import pytest
import torch

from rayplane.kernels.native import load
from rayplane.kernels.program import Program
from rayplane.kernels.striped import Merge, Offer, StripedSizes
from rayplane.model.shared import share_stripes
from rayplane.model.striping import Striping
from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks
from tests.model.serving import Sequences

NATIVE = load()
HEADS, DIM = 3, 10
pytestmark = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("native", [NATIVE, None], ids=["c++", "torch"])
def test_ranks_merge_what_all_say_of_their_own_queries(native, dtype):
    whole = Sequences([[1] * 13], 4, 8).step([(0, 13)])
    generator = torch.Generator().manual_seed(0)
    queries, parts = torch.randn(13, HEADS * DIM, generator=generator).to(dtype), torch.randn(2, 13, HEADS * DIM, generator=generator)
    lse = 5 * torch.randn(2, 13, HEADS, generator=generator)
    lse[1, :5] = -torch.inf

    def body(mesh):
        memory = share_stripes(mesh.cp, NATIVE, StripedSizes(16, HEADS, DIM, 0, 7, dtype), 20.0)
        step = Striping(2, 2, mesh.rank).part(whole, 0)
        first, count = step.stripes.first, len(step.tokens)
        qkv, out = torch.zeros(16, 3 * HEADS * DIM, dtype=dtype), torch.zeros(16, HEADS * DIM, dtype=dtype)
        qkv[:count, : HEADS * DIM] = queries[first : first + count]
        Program([Offer(memory, qkv)], native, 1, [memory]).run(step)
        seen = memory.queries[:13].clone()
        memory.parts[mesh.rank, :13], memory.lse[mesh.rank, :13] = parts[mesh.rank], lse[mesh.rank]
        Program([Merge(memory, out)], native, 1, [memory]).run(step)
        return seen, out[:count]

    right = (lse.softmax(0)[..., None] * parts.unflatten(-1, (HEADS, DIM))).sum(0).flatten(1)
    (seen, first), (other, second) = run_ranks(Layout(cp=2), body)
    assert torch.equal(seen, queries) and torch.equal(other, queries)
    torch.testing.assert_close(torch.cat((first, second)).float(), right, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
