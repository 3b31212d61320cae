"""Memory by closed forms against the cut that the runtime makes, rank by rank."""

from dataclasses import replace
from itertools import product

import pytest

from rayplane.plan.machine.catalog import device
from rayplane.plan.step.activations import half_bytes, kept, layer_bytes, logit_bytes
from rayplane.plan.step.compute import Microbatch
from rayplane.plan.step.held import fullest
from rayplane.plan.step.memory import StageMemory, in_flight, stage_memory, verdict
from rayplane.plan.step.practice import Practice
from rayplane.plan.step.share import chunk_params, parts, share
from rayplane.plan.step.states import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Coord, Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import chunk_of


def model(heads: int = 8, kv_heads: int = 4, tied: bool = False, vocab: int = 96) -> ModelSpec:
    return ModelSpec(layers=5, hidden=64, heads=heads, kv_heads=kv_heads, head_dim=8, mlp=48, vocab=vocab, tied=tied, qk_norm=True)


def held(spec: ModelSpec, layout: Layout, coord: Coord) -> int:
    chunks = (chunk_of(t, layout, coord) for t in spec.tensors())
    return sum(c.numel for c in chunks if c)


def layout(pp: int, tp: int, schedule: str = "1f1b", vpp: int = 1) -> Layout:
    return Layout(pp=pp, tp=tp, schedule=schedule, vpp=vpp, boundaries=even_boundaries(5, pp * vpp))


def work(spec: ModelSpec, cut: Layout, precision: str = "fp32") -> Microbatch:
    of = share(parts(spec), cut.tp)
    return Microbatch(spec, of, device("h100-sxm"), precision, 32, cut.micro_batch, cut.sp, cut.recompute)


def memory(spec: ModelSpec, cut: Layout, microbatches: int = 8, precision: str = "fp32") -> tuple[StageMemory, ...]:
    of = work(spec, cut, precision)
    return stage_memory(of, kept(of), cut, fullest(BUILDERS[cut.schedule](cut.pp, microbatches, cut.vpp)))


def stage_params(spec: ModelSpec, cut: Layout, stage: int) -> int:
    return sum(chunk_params(share(parts(spec), cut.tp), cut, c) for c in cut.chunks_of_stage(stage))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (1, 4), (2, 1), (2, 2), (5, 4)])
@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zbv", 2)])
def test_parameters_of_a_stage_equal_what_its_fullest_rank_holds(pp: int, tp: int, tied: bool, schedule: str, vpp: int) -> None:
    spec, cut = model(tied=tied), layout(pp, tp, schedule, vpp)
    for stage in range(pp):
        assert stage_params(spec, cut, stage) == max(held(spec, cut, Coord(pp=stage, tp=t)) for t in range(tp))


@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(9, 3, 2), (9, 3, 4), (9, 3, 3), (8, 2, 4), (7, 7, 3)])
def test_uneven_cuts_are_never_underestimated_and_by_less_than_a_unit_overestimated(heads: int, kv_heads: int, tp: int) -> None:
    spec, cut = model(heads, kv_heads, vocab=97), layout(2, tp)
    for stage in range(2):
        fullest_rank = max(held(spec, cut, Coord(pp=stage, tp=t)) for t in range(tp))
        assert fullest_rank <= stage_params(spec, cut, stage) <= fullest_rank + 64 * (cut.boundaries[stage] * 3 + 1)


def test_weights_over_all_ranks_are_the_model_once_per_replica() -> None:
    spec, cut = model(), layout(5, 1)
    assert sum(m.weights for m in memory(spec, cut)) == 4 * spec.num_params
    norms = sum(t.numel for t in spec.tensors() if not any(d.cut for d in t.dims))
    split = sum(2 * m.weights for m in memory(spec, layout(5, 2)))
    assert split == 4 * (spec.num_params + norms)


@pytest.mark.parametrize(("precision", "total"), [("fp32", 16), ("bf16", 18)])
def test_bytes_per_parameter(precision: str, total: int) -> None:
    assert WEIGHT_BYTES[precision] + GRADIENT_BYTES + OPTIMIZER_BYTES[precision] == total


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_and_optimizer_state_follow_the_weights_and_fragmentation_all_of_them(precision: str) -> None:
    gpu = device("h100-sxm")
    for stage in memory(model(), layout(2, 2), precision=precision):
        params = stage.weights // WEIGHT_BYTES[precision]
        assert (stage.gradients, stage.optimizer) == (4 * params, (8 if precision == "fp32" else 12) * params)
        assert stage.fixed == gpu.fixed_bytes + round(gpu.fragmentation * (stage.total - stage.fixed))


def test_activations_are_those_of_the_layers_and_of_the_embedding_and_the_head_times_what_is_in_flight() -> None:
    """A layer keeps 4 hidden, 3 q, 3 kv and 3 mlp widths of a token; a stage its input, the last one also the normed output."""
    first, last = memory(model(), layout(2, 2))
    of_layer = 4 * 64 + 3 * 4 * 8 + 3 * 2 * 8 + 3 * 24
    assert first.activations == 2 * 32 * 4 * (3 * of_layer + 64)
    assert last.activations == 1 * 32 * 4 * (2 * of_layer + 2 * 64)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_closed_form_of_what_is_in_flight_equals_the_count_over_the_schedule(schedule: str) -> None:
    for pp, m in product((1, 2, 4), (1, 3, 8)):
        counted = fullest(BUILDERS[schedule](pp, m, 1))
        assert [tuple(moments) for moments in in_flight(Layout(pp=pp, schedule=schedule), m)] == list(counted)


@pytest.mark.parametrize(("schedule", "vpp"), [("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zbv", 2)])
def test_what_is_in_flight_at_least_is_never_more_than_what_is(schedule: str, vpp: int) -> None:
    for pp, m in product((1, 2, 4, 6), (1, 3, 8, 13, 24)):
        least, counted = in_flight(Layout(pp=pp, schedule=schedule, vpp=vpp), m), fullest(BUILDERS[schedule](pp, m, vpp))
        for (few,), moments in zip(least, counted, strict=True):
            assert any(all(a <= b for a, b in zip(few, held, strict=True)) for held in moments)


def test_halves_that_wait_for_their_weight_gradients_take_memory() -> None:
    spec = model()
    one, split = memory(spec, layout(4, 1)), memory(spec, layout(4, 1, "zb-h1"))
    assert split[0].activations == one[0].activations
    assert split[3].activations > one[3].activations


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_zero_1_cuts_the_optimizer_state_and_nothing_else(precision: str) -> None:
    spec, cut = model(), replace(layout(2, 1), dp=4)
    whole, cut_up = memory(spec, cut, precision=precision)[0], memory(spec, replace(cut, zero=1), precision=precision)[0]
    assert cut_up.optimizer == whole.optimizer / 4
    assert (cut_up.weights, cut_up.gradients, cut_up.activations) == (whole.weights, whole.gradients, whole.activations)


def test_recomputation_and_sp_keep_less() -> None:
    spec, cut = model(), replace(layout(1, 2), micro_batch=2)
    h, q, kv, mlp = 64, 4 * 8, 2 * 8, 24
    tokens = 2 * 32 * 4
    kinds = [replace(cut, recompute=r, sp=sp) for r in ("none", "selective", "full") for sp in (False, True)]
    found = [layer_bytes(work(spec, kind)) / tokens for kind in kinds]
    whole = 4 * h + 3 * q + 3 * kv + 3 * mlp
    assert found == [whole, whole - 2 * h, whole - q - kv, whole - q - kv - 2 * h, h, h / 2]
    assert half_bytes(work(spec, cut)) / tokens == 4 * h + 2 * q + 2 * kv + 3 * mlp
    assert half_bytes(work(spec, kinds[1])) / tokens == 3 * h + 2 * q + 2 * kv + 3 * mlp
    again = kept(work(spec, kinds[4]))
    assert again.again + again.workspace == again.layer, "one layer is whole while it is computed again"


def test_logits_are_on_the_last_stage_only() -> None:
    first, last = memory(model(), layout(2, 1))
    assert first.logits == 0 < last.logits
    assert last.logits == 8 * 32 * 96
    large = replace(model(vocab=50_000), max_seq=32)
    assert memory(large, layout(2, 1))[1].logits < 8 * 32 * 50_000 * 5, "a slice at a time, whatever is in flight"


def test_verdicts() -> None:
    assert [verdict(n, 100) for n in (90, 91, 100, 101)] == ["fits", "tight", "tight", "does not fit"]


def test_what_other_systems_keep_besides() -> None:
    spec = model()
    plain = work(spec, layout(1, 2))
    tokens, h, f = 32, 64, 24

    def more(practice: Practice) -> float:
        return layer_bytes(replace(plain, practice=practice)) - layer_bytes(plain)

    assert more(Practice(fused_norms=False)) == 6 * h * tokens * 4
    assert more(Practice(fused=False)) == f * tokens * 4
    assert more(Practice(keeps_projected=False)) == -(4 * 8 + 2 * 8) * tokens * 4
    assert more(Practice(attention="unfused")) == 2 * 4 * 32 * tokens, "of 4 heads, a score per key"
    assert more(Practice(attention="unfused", dropout=True)) == 5 * 4 * 32 * tokens + h * tokens * 4
    whole = replace(plain, practice=Practice(logit_bytes=12))
    assert logit_bytes(whole) == 12 * tokens * 48
    assert logit_bytes(replace(plain, practice=Practice(logit_bytes=12, gathered_logits=True))) == 12 * tokens * 96
    narrow = layer_bytes(replace(plain, precision="bf16")) - layer_bytes(replace(plain, precision="fp8"))
    assert narrow == (2 * h + 4 * 8 + f) * tokens, "a byte for each operand of a product"


def test_gradients_may_be_kept_in_half_or_twice() -> None:
    spec, cut = model(), layout(2, 2)
    sizes = [
        stage_memory(w, kept(w), cut, fullest(BUILDERS["1f1b"](2, 8, 1)))[0].gradients
        for w in (replace(work(spec, cut), practice=Practice(gradient_bytes=n)) for n in (2, 4, 6))
    ]
    assert sizes == [sizes[0], 2 * sizes[0], 3 * sizes[0]]
