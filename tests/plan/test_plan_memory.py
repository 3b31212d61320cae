"""Memory by closed forms against the cut that the runtime makes, rank by rank."""

from itertools import product

import pytest

from rayplane.plan.catalog import device
from rayplane.plan.compute import Microbatch
from rayplane.plan.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, StageMemory, in_flight, stage_memory, verdict
from rayplane.plan.share import parts, share, stage_params
from rayplane.spec.layout import Coord, Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import chunk_of


def model(heads: int = 8, kv_heads: int = 4, tied: bool = False, vocab: int = 96) -> ModelSpec:
    return ModelSpec(layers=5, hidden=64, heads=heads, kv_heads=kv_heads, head_dim=8, mlp=48, vocab=vocab, tied=tied, qk_norm=True)


def held(spec: ModelSpec, layout: Layout, coord: Coord) -> int:
    chunks = (chunk_of(t, layout, coord) for t in spec.tensors())
    return sum(c.numel for c in chunks if c)


def layout(pp: int, tp: int, schedule: str = "1f1b") -> Layout:
    return Layout(pp=pp, tp=tp, schedule=schedule, boundaries=even_boundaries(5, pp))


def memory(spec: ModelSpec, cut: Layout, microbatches: int = 8, precision: str = "fp32") -> tuple[StageMemory, ...]:
    work = Microbatch(spec, share(parts(spec), cut.tp), device("h100-sxm"), precision, 32, cut.micro_batch)
    return stage_memory(work, cut, microbatches)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (1, 4), (2, 1), (2, 2), (5, 4)])
def test_parameters_of_a_stage_equal_what_its_fullest_rank_holds(pp: int, tp: int, tied: bool) -> None:
    spec, cut = model(tied=tied), layout(pp, tp)
    of = share(parts(spec), tp)
    for stage in range(pp):
        fullest = max(held(spec, cut, Coord(pp=stage, tp=t)) for t in range(tp))
        assert stage_params(of, tied, cut.boundaries, stage) == fullest


@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(9, 3, 2), (9, 3, 4), (9, 3, 3), (8, 2, 4), (7, 7, 3)])
def test_uneven_cuts_are_never_underestimated_and_by_less_than_a_unit_overestimated(heads: int, kv_heads: int, tp: int) -> None:
    spec, cut = model(heads, kv_heads, vocab=97), layout(2, tp)
    of = share(parts(spec), tp)
    for stage in range(2):
        fullest = max(held(spec, cut, Coord(pp=stage, tp=t)) for t in range(tp))
        assert fullest <= stage_params(of, False, cut.boundaries, stage) <= fullest + 64 * (cut.boundaries[stage] * 3 + 1)


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
    """A layer keeps 4 hidden, 3 q, 3 kv and 4 mlp widths of a token; a stage its input, the last one also the normed output."""
    first, last = memory(model(), layout(2, 2))
    of_layer = 4 * 64 + 3 * 4 * 8 + 3 * 2 * 8 + 4 * 24
    assert first.activations == 2 * 32 * 4 * (3 * of_layer + 64)
    assert last.activations == 1 * 32 * 4 * (2 * of_layer + 2 * 64)


def test_microbatches_in_flight_follow_the_schedule() -> None:
    one, all_first = Layout(pp=4), Layout(pp=4, schedule="gpipe")
    assert [in_flight(one, 8, s) for s in range(4)] == [4, 3, 2, 1]
    assert [in_flight(one, 2, s) for s in range(4)] == [2, 2, 2, 1]
    assert [in_flight(all_first, 8, s) for s in range(4)] == [8, 8, 8, 8]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_in_flight_equals_the_most_forwards_ahead_of_backwards_in_the_schedule(schedule: str) -> None:
    from rayplane.spec.schedule import BUILDERS, Op

    for pp, m in product((1, 2, 4), (1, 3, 8)):
        for stage, actions in enumerate(BUILDERS[schedule](pp, m).ranks):
            most = ahead = 0
            for action in actions:
                ahead += 1 if action.op is Op.FORWARD else -1
                most = max(most, ahead)
            assert most == in_flight(Layout(pp=pp, schedule=schedule), m, stage)


def test_logits_are_on_the_last_stage_only() -> None:
    first, last = memory(model(), layout(2, 1))
    assert first.logits == 0 < last.logits
    assert last.logits == 8 * 32 * 96


def test_verdicts() -> None:
    assert [verdict(n, 100) for n in (90, 91, 100, 101)] == ["fits", "tight", "tight", "does not fit"]
