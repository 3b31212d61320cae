"""Every op of C++ gives what its twin in torch gives, in shapes that do not divide well."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F

from rayplane.kernels.linear import Ending, pack, prepack
from rayplane.kernels.native import load
from rayplane.kernels.op import buffer
from rayplane.kernels.paged import Attend, Heads, LayerCache, Rotate
from rayplane.kernels.pointwise import Act, Embed, Norm
from rayplane.kernels.program import Program
from rayplane.model.cache import DTYPES, cache_spec, make_cache
from tests.model.serving import Sequences

NATIVE = load()
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NEAR = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}
BF16_PRODUCTS = NATIVE is not None and NATIVE.bf16
pytestmark = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")
LENGTHS = (1, 15, 16, 17, 40, 70)
HEADS = {
    "9 of 3": Heads((0, 3, 6, 9), 64),
    "5 of 2": Heads((0, 3, 5), 64),
    "one each": Heads((0, 1, 2), 80),
    "one for all": Heads((0, 8), 128),
    "narrow": Heads((0, 2, 4), 10),
}


@pytest.fixture(autouse=True)
def one_thread_of_torch():
    """Its team and that of C++ would be in each other's way where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def steps(block: int):
    """The whole prompts; then one token more of some and several of others."""
    sequences = Sequences([[7] * (n + 11) for n in LENGTHS], block, 200)
    prompts = sequences.step([(n, length) for n, length in enumerate(LENGTHS)])
    return prompts, sequences.step([(0, 1), (1, 1), (2, 11), (4, 3), (5, 1)], all_rows=False)


def random(*shape: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled(rows: int, columns: int, dtype) -> torch.Tensor:
    out = buffer(rows, columns, dtype)
    out.copy_(random(rows, columns))
    return out


def copied(op):
    """The op over its own copies of all buffers."""
    known = {}

    def copy_of(x):
        if isinstance(x, LayerCache):
            return LayerCache(*(copy_of(getattr(x, f.name)) for f in fields(x)))
        if isinstance(x, torch.Tensor) and id(x) not in known:
            known[id(x)] = copy.deepcopy(x)
        return known.get(id(x), x)

    return replace(op, **{f.name: copy_of(getattr(op, f.name)) for f in fields(op)})


def both(op, step, threads: int = 2):
    """(by C++, by torch): the op after it has run."""
    ours, theirs = copied(op), copied(op)
    Program([ours], NATIVE, threads).run(step)
    theirs.twin(step)
    return ours, theirs


def assert_near(got: torch.Tensor, right: torch.Tensor, dtype) -> None:
    torch.testing.assert_close(got.float(), right.float(), rtol=NEAR[dtype], atol=NEAR[dtype])


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_norms(dtype, centred, wanted):
    step = steps(16)[1]
    bias = random(100, dtype=dtype, seed=2) if centred else None
    op = Norm(filled(40, 100, dtype), buffer(40, 100, dtype), random(100, dtype=dtype, seed=1), bias, 1e-5, centred, wanted)
    ours, theirs = both(op, step)
    assert theirs.out.any()
    assert_near(ours.out, theirs.out, dtype)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_the_gated_product_and_gelu(dtype, gated):
    op = Act(filled(40, 1100 if gated else 550, dtype), buffer(40, 550, dtype), gated)
    ours, theirs = both(op, steps(16)[1])
    assert_near(ours.out, theirs.out, dtype)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_the_embedding_gives_zeros_for_rows_of_other_ranks(dtype, out_dtype):
    step = replace(steps(16)[1], tokens=torch.arange(17) * 3)
    op = Embed(filled(20, 64, dtype), buffer(17, 64, out_dtype or dtype), random(90, 64, dtype=dtype), 64, 10, 20)
    ours, theirs = both(op, step)
    assert_near(ours.out, theirs.out, dtype)


@pytest.mark.skipif(not BF16_PRODUCTS, reason="this CPU does not multiply bf16")
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 15, 16, 17, 31, 33, 70, 600])
@pytest.mark.parametrize("shape", [(50, 50), (96, 64), (100, 320)])
def test_packed_products(tokens, shape):
    rows, columns = shape
    step = replace(steps(16)[1], tokens=torch.zeros(tokens, dtype=torch.int64))
    w, bias = random(*shape, dtype=torch.bfloat16) * 0.1, random(rows, dtype=torch.bfloat16, seed=1)
    x = filled(tokens, columns, torch.bfloat16)
    y = F.linear(x.float(), w.float(), bias.float())
    gate, up = y.chunk(2, -1)
    old = filled(tokens, rows, torch.bfloat16)
    rights = {
        Ending.STORE: y,
        Ending.ADD: y + old.float(),
        Ending.STORE_F32: y,
        Ending.GELU: F.gelu(y, approximate="tanh"),
        Ending.GATED: F.silu(gate) * up,
    }
    for ending, right in rights.items():
        packed = pack(NATIVE, w, bias, gated=ending == Ending.GATED)
        out = buffer(tokens, right.shape[1], torch.float32 if ending == Ending.STORE_F32 else torch.bfloat16)
        out.copy_(old[:, : right.shape[1]])
        Program([packed.product(x, out, ending)], NATIVE, 2).run(step)
        assert_near(out, right, torch.float32 if ending == Ending.STORE_F32 else torch.bfloat16)


@pytest.mark.skipif(not BF16_PRODUCTS, reason="this CPU does not multiply bf16")
def test_a_packed_table_embeds_too():
    step = replace(steps(16)[1], tokens=torch.arange(17) * 3)
    w = random(50, 70, dtype=torch.bfloat16)
    packed = pack(NATIVE, w, None)
    op = Embed(packed.data, buffer(17, 70, torch.bfloat16), None, 70, 0, 50, packed.columns)
    Program([op], NATIVE, 1).run(step)
    assert torch.equal(op.out[:], F.embedding(step.tokens.clamp(max=49), w) * (step.tokens < 50)[:, None])


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("bias", [None, random(50)])
def test_plain_products(dtype, bias):
    w, x = random(50, 70, dtype=dtype), filled(17, 70, dtype)
    bias = None if bias is None else bias.to(dtype)
    right = F.linear(x.float(), w.float(), None if bias is None else bias.float())
    for ending in (Ending.STORE, Ending.ADD, Ending.STORE_F32):
        out = torch.zeros(17, 50, dtype=torch.float32 if ending == Ending.STORE_F32 else dtype)
        Program([prepack(w.clone(), bias).product(x, out, ending)], NATIVE, 1).run(steps(16)[1])
        assert_near(out, right, dtype)


def rotation(heads: Heads, cache: LayerCache, dtype, norms: bool = False, positions: int = 90) -> Rotate:
    qkv = filled(200, (heads.count + 2 * heads.kv) * heads.dim, dtype)
    angles = random(positions, heads.dim)
    norm = random(heads.dim, dtype=dtype, seed=4) if norms else None
    return Rotate(qkv, heads, cache, angles, norm, norm, 1e-5)


@pytest.mark.parametrize("kv", DTYPES)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("norms", [False, True])
def test_rotation_and_what_it_writes(kv, dtype, norms):
    step, heads = steps(16)[0], HEADS["5 of 2"]
    (cache,) = make_cache(cache_spec(kv, 16, dtype), heads, 1, 200)
    ours, theirs = both(rotation(heads, cache, dtype, norms), step)
    assert_near(ours.qkv, theirs.qkv, dtype)
    one = {"fp8": 0.08, "int8": 0.03, "bf16": 0.016}.get(kv, 2e-5 if dtype == torch.float32 else 0.016)  # a step of the format
    for n, length in enumerate(LENGTHS):
        for a, b in zip(ours.cache.read(step.tables[n], length), theirs.cache.read(step.tables[n], length), strict=True):
            torch.testing.assert_close(a, b, rtol=one, atol=one)


@pytest.mark.parametrize(("block", "window"), [(16, 0), (4, 5), (32, 33)])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(("dtype", "kv"), [("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "int8"), ("fp32", "fp8"), ("bf16", "fp8")])
def test_attention_over_pages(dtype, kv, heads, window, block):
    dtype = TYPES[dtype]
    (cache,) = make_cache(cache_spec(kv, block, dtype), heads, 1, 200)
    for step in steps(block):
        turn = rotation(heads, cache, dtype)
        turn.twin(step)
        count = turn.qkv.shape[0]
        served = torch.tensor(heads.served, dtype=torch.int32)
        out, lse = buffer(count, heads.count * heads.dim, dtype), torch.zeros(count, heads.count)
        ours, theirs = both(Attend(turn.qkv, out, heads, served, cache, window, heads.dim**-0.5, lse), step)
        assert theirs.out.any()
        torch.testing.assert_close(ours.lse, theirs.lse, rtol=NEAR[dtype], atol=NEAR[dtype])
        assert_near(ours.out, theirs.out, dtype)


def test_fp8_is_rounded_as_torch_rounds():
    heads = Heads((0, 1), 256)
    step = replace(steps(16)[0], tokens=torch.zeros(1, dtype=torch.int64), slots=torch.zeros(1, dtype=torch.int64))
    (cache,) = make_cache(cache_spec("fp8", 16, torch.float32), heads, 1, 1)
    values = torch.linspace(-448, 448, 256).sign() * torch.logspace(-3.5, 2.65, 256).clamp(max=448)
    values[-1] = 448
    op = Rotate(torch.cat([values] * 3)[None].contiguous(), heads, cache, None, None, None, 0.0)
    Program([op], NATIVE, 1).run(step)
    assert torch.equal(cache.read(torch.zeros(1, dtype=torch.int32), 1)[1][0, 0], values.to(torch.float8_e4m3fn).float())
