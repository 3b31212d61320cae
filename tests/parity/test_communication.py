"""What crosses between ranks, byte for byte: which collective runs where, and how much each rank sends.

The ledger counts on gloo what is handed to the transport, so these are measurements; the closed forms stand on the right.
"""

import pytest
import torch

from rayplane.comm.transport import GlooTransport
from rayplane.model.layers import ColumnLinear, Place, RowLinear
from rayplane.model.parameter import GradWork
from rayplane.spec.layout import Layout, split
from rayplane.spec.sharding import Dim, TensorSpec
from rayplane.train.threads import run_ranks

from .training import SEQ_LEN, cut, make_rank, section, tiny

FP32 = 4


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("numel", [1, 12, 1200])
def test_all_reduce_sums_and_moves_a_rings_bytes(size, numel):
    def body(mesh):
        x = torch.arange(numel, dtype=torch.float32) + mesh.rank
        mesh.tp.all_reduce(x)
        largest = mesh.tp.all_reduce(torch.tensor([float(mesh.rank)]), "max")
        return x, largest.item(), mesh.ledger.bytes("tp", "all_reduce")

    results = run_ranks(Layout(tp=size), body)
    expected = torch.arange(numel) * float(size) + sum(range(size))
    for x, largest, _ in results:
        assert torch.equal(x, expected)
        assert largest == size - 1
    extra = 2 * FP32 * (size - 1)  # the maximum of one element
    assert sum(sent for *_, sent in results) == 2 * numel * FP32 * (size - 1) + extra


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_of_an_all_reduce_sends_2n_times_p_minus_1_over_p(size):
    numel = 120 * size

    def body(mesh):
        mesh.tp.all_reduce(torch.ones(numel))
        return mesh.ledger.bytes("tp", "all_reduce")

    assert run_ranks(Layout(tp=size), body) == [2 * numel * FP32 * (size - 1) // size] * size


@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_is_reduce_scatter_then_all_gather(size):
    """Also with parts of unequal sizes: 7 rows over 2 or 3 ranks."""
    sizes = [split(7, size, i)[1] for i in range(size)]

    def body(mesh):
        x = torch.randn(7, 3, generator=torch.Generator().manual_seed(mesh.rank))
        part = mesh.tp.reduce_scatter(x, sizes)
        whole = mesh.tp.all_gather(part, sizes)
        return whole, mesh.tp.all_reduce(x.clone()), part.shape[0], mesh.ledger

    results = run_ranks(Layout(tp=size), body)
    for rank, (whole, reduced, rows, _) in enumerate(results):
        torch.testing.assert_close(whole, reduced)
        assert rows == sizes[rank]
    halves = sum(ledger.bytes("tp", "reduce_scatter") + ledger.bytes("tp", "all_gather") for *_, ledger in results)
    assert halves == sum(ledger.bytes("tp", "all_reduce") for *_, ledger in results) == 2 * 7 * 3 * FP32 * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_ledger_has_what_each_rank_hands_to_gloo(size, monkeypatch):
    """With parts of unequal sizes no two ranks send the same, and some parts are empty."""
    sizes = [split(size + 1, size, i)[1] for i in range(size - 1)] + [0]
    handed = [0] * size
    send = GlooTransport.send

    def counted(transport, x, peer, tag):
        handed[transport.rank] += x.nbytes
        return send(transport, x, peer, tag)

    monkeypatch.setattr(GlooTransport, "send", counted)

    def body(mesh):
        mesh.tp.all_reduce(torch.ones(size + 1))
        mesh.tp.reduce_scatter(torch.ones(sum(sizes), 3), sizes)
        mesh.tp.all_gather(torch.ones(sizes[mesh.rank], 5), sizes)
        return mesh.ledger.bytes_by_axis()["tp"]

    assert run_ranks(Layout(tp=size), body) == handed


class LoggedAxis:
    """A tp axis of two that says what begins and what has ended."""

    size, rank = 2, 0

    def __init__(self, log):
        self._log = log

    def start_all_reduce(self, y):
        return self._start("sum")

    def start_all_gather(self, x, sizes):
        return torch.ones(sum(sizes), *x.shape[1:]), self._start("rows")

    def start_reduce_scatter(self, y, sizes):
        return y[: sizes[0]], self._start("sum")

    def _start(self, what):
        self._log.append(f"start {what}")
        return lambda: self._log.append(f"have {what}")


@pytest.mark.parametrize(
    ("sp", "hold", "expected"),
    [
        (False, False, ["start sum", "weights", "have sum"]),
        (False, True, ["start sum", "have sum", "W", "weights"]),
        (True, False, ["start rows", "start sum", "have rows", "weights", "have sum"]),
        (True, True, ["start sum", "have sum", "W", "start rows", "have rows", "weights"]),
    ],
)
def test_weight_gradients_run_while_communication_is_under_way(sp, hold, expected):
    """Under sp the rows are gathered again for them: at once, or with the W that they were held for."""
    log, work = [], GradWork(defer=True)
    place = Place(LoggedAxis(log), None, work, torch.float32, sp)
    layer = ColumnLinear(place, [TensorSpec("up", (Dim("mlp", 6), Dim("hidden", 3, cut=False)), 0, 0.1)])
    layer.weight.main_grad = torch.zeros(layer.weight.shape)
    work.on_added = lambda weight: log.append("weights")
    y = layer(torch.ones(2 if sp else 4, 3, requires_grad=True), place.rows(4))
    log.clear()
    if hold:
        work.hold()
    y.sum().backward()
    if hold:
        log.append("W")
        work.do(work.release())
    assert log == expected


def test_the_rows_for_held_work_are_on_their_way_while_the_work_before_is_done():
    log, work = [], GradWork(defer=False)
    w = torch.nn.Parameter(torch.ones(1))
    w.main_grad = torch.zeros(1)

    def later(name):
        def start():
            log.append(f"start {name}")
            return lambda buffer: log.append(name)

        return start

    work.hold()
    for name in "abc":
        work.push_start(w, later(name))
    work.do(work.release())
    assert log == ["start a", "start b", "a", "start c", "b", "c"]


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_column_then_row_parallel_sums_once_each_way(size, sp):
    """One all-reduce forward and one backward; under sp the two halves of one instead, and in backward the rows of x once more."""
    tokens, hidden, mlp = 12, 12, 18
    up = TensorSpec("up", (Dim("mlp", mlp), Dim("hidden", hidden, cut=False)), 0, 0.1)
    down = TensorSpec("down", (Dim("hidden", hidden, cut=False), Dim("mlp", mlp)), 0, 0.1)
    generator = torch.Generator().manual_seed(0)
    w_up, w_down = torch.randn(up.shape, generator=generator), torch.randn(down.shape, generator=generator)
    x0, dy = torch.randn(tokens, hidden, generator=generator), torch.randn(tokens, hidden, generator=generator)

    def body(mesh):
        place = Place(mesh.tp, mesh.cp, GradWork(defer=True), torch.float32, sp)
        column, row = ColumnLinear(place, [up]), RowLinear(place, down)
        for layer, whole in ((column, w_up), (row, w_down)):
            layer.weight.main_grad = torch.zeros(layer.weight.shape)
            layer.weight.data.copy_(whole[layer.weight.parts[0].chunk.slices])
        rows = place.rows(tokens)
        mine = slice(None) if rows is None else slice(sum(rows[: mesh.rank]), sum(rows[: mesh.rank + 1]))
        x = x0[mine].clone().requires_grad_()
        y = place.summed(row(torch.tanh(column(x, rows))), rows)
        forward = dict(mesh.ledger.bytes_by_operation("tp"))
        y.backward(dy[mine])
        place.grads.run()
        grads = [(layer.weight.parts[0].chunk.slices, layer.weight.main_grad) for layer in (column, row)]
        return mine, y.detach(), x.grad, grads, forward, dict(mesh.ledger.bytes_by_operation("tp"))

    x, a, b = x0.clone().requires_grad_(), w_up.clone().requires_grad_(), w_down.clone().requires_grad_()
    expected = torch.tanh(x @ a.T) @ b.T
    expected.backward(dy)
    half = tokens * hidden * FP32 * (size - 1) // size
    once = {"all_gather": half, "reduce_scatter": half} if sp else {"all_reduce": 2 * half}
    twice = {"all_gather": 3 * half, "reduce_scatter": 2 * half} if sp else {"all_reduce": 4 * half}
    for mine, y, dx, grads, forward, both in run_ranks(Layout(tp=size), body):
        torch.testing.assert_close(y, expected[mine])
        torch.testing.assert_close(dx, x.grad[mine])
        for (slices, grad), whole in zip(grads, (a.grad, b.grad), strict=True):
            torch.testing.assert_close(grad, whole[slices])
        assert (forward, both) == (once, twice)


def step_bytes(layout, spec, tmp_path):
    """Bytes by (axis, operation) that each rank sends in one training step."""

    job = section(tmp_path)

    def run(mesh):
        rank = make_rank(spec, job, mesh)
        return rank.step(drain=False)[0].comm_bytes

    return run_ranks(cut(spec, layout), run)


def test_pipeline_sends_one_activation_and_one_gradient_per_microbatch(tmp_path):
    spec = tiny(tied=False)
    first, last = step_bytes(Layout(pp=2, micro_batch=3), spec, tmp_path)
    activations = 8 * SEQ_LEN * spec.hidden * FP32  # 8 samples in 3 microbatches: 3 + 3 + 2
    assert first["pp"] == activations
    assert last["pp_back"] == activations


def test_a_step_reports_its_own_bytes_only(tmp_path):
    spec, job = tiny(tied=False), section(tmp_path)

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        return [rank.step(drain=False)[0].comm_bytes for _ in range(2)]

    for first, second in run_ranks(cut(spec, Layout(pp=2, micro_batch=4)), body):
        assert first == second


def test_replicas_all_reduce_their_gradients_once_per_step(tmp_path):
    spec = tiny(tied=False)
    one, other = step_bytes(Layout(dp=2, micro_batch=1), spec, tmp_path)
    aligned = sum(-(-numel // 16) * 16 for numel in _weight_sizes(spec))
    assert one["dp"] == other["dp"] == aligned * FP32  # 2 N (p - 1) / p with p = 2


def test_zero1_sends_the_bytes_of_the_all_reduce(tmp_path):
    """Reduce-scatter of the gradients and all-gather of the weights: N (p - 1) / p each, with p = 2."""
    spec = tiny(tied=False)
    sent = [b["dp"] for b in step_bytes(Layout(dp=2, zero=1, micro_batch=1), spec, tmp_path)]
    aligned = sum(-(-numel // 16) * 16 for numel in _weight_sizes(spec))
    assert sum(sent) == 2 * aligned * FP32


@pytest.mark.parametrize("size", [2, 3])
def test_zero2_reduces_in_every_microbatch_and_gathers_once(size, tmp_path):
    """m reduce-scatters and one all-gather of N (p - 1) / p bytes each; summed over p ranks."""
    spec = tiny(tied=False)
    layout = Layout(dp=size, zero=2, micro_batch=2)
    sent = sum(b["dp"] for b in step_bytes(layout, spec, tmp_path))
    aligned = sum(-(-numel // 16) * 16 for numel in _weight_sizes(spec))
    assert sent == (layout.num_microbatches(8) + 1) * aligned * FP32 * (size - 1)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("size", [2, 3])
def test_zero3_gathers_layers_twice_and_the_ends_once_a_microbatch(size, recompute, tmp_path):
    """m (2 all-gathers and a reduce-scatter), but embedding and head are gathered in forward only; recomputing gathers no more."""
    spec = tiny(tied=False)
    layout = Layout(dp=size, zero=3, micro_batch=2, recompute=recompute)
    sent = sum(b["dp"] for b in step_bytes(layout, spec, tmp_path))
    aligned = sum(-(-numel // 16) * 16 for numel in _weight_sizes(spec))
    ends = 2 * -(-spec.vocab * spec.hidden // 16) * 16
    assert sent == layout.num_microbatches(8) * (3 * aligned - ends) * FP32 * (size - 1)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_islands_reduce_their_shares_across_once_a_step(zero, tmp_path):
    """Within, what zero sends over an island; across, an all-reduce of each share: 2 (N / s) (r - 1) / r with s = r = 2."""
    spec = tiny(tied=False)
    layout = Layout(dp=4, zero=zero, shard=2, micro_batch=1)
    sent = step_bytes(layout, spec, tmp_path)
    aligned = sum(-(-numel // 16) * 16 for numel in _weight_sizes(spec))
    ends = 2 * -(-spec.vocab * spec.hidden // 16) * 16
    m = layout.num_microbatches(8)
    within = {1: 2 * aligned, 2: (m + 1) * aligned, 3: m * (3 * aligned - ends)}[zero]
    assert sum(b["shard"] for b in sent) == 2 * within * FP32
    assert sum(b["replicate"] for b in sent) == 4 * (aligned // 2) * FP32
    assert not any(b.get("dp") for b in sent)


def test_zero1_shares_the_optimizer_state(tmp_path):
    spec, job = tiny(tied=True), section(tmp_path)

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        return sum(p.data.numel() for p in rank.optimizer.tensors() if p.name.startswith("exp_avg/"))

    held = run_ranks(cut(spec, Layout(dp=3, zero=1)), body)
    assert sum(held) == spec.num_params, "each element's moments are on one replica"
    assert max(held) < 1.2 * spec.num_params / 3


@pytest.mark.parametrize("sp", [False, True])
def test_tp_has_two_all_reduces_a_layer_each_way(sp, tmp_path):
    """Under sp their halves, two more gathers in backward, and a sum of the gradients of the norms, whose rows are cut."""
    spec = tiny(tied=False)
    sent = step_bytes(Layout(tp=2, sp=sp, micro_batch=8), spec, tmp_path)[0]["tp"]
    tokens = 8 * SEQ_LEN
    activation = tokens * spec.hidden * FP32
    layers = (5 if sp else 4) * spec.layers * activation
    ends = 2 * activation  # the embedding's output forward, the head's input backward
    loss = 3 * tokens * FP32  # largest logit; sum of exponentials and target logit
    kv_heads = _shared_kv_elements(spec) * FP32  # KV head 1 is on both ranks
    norms = (2 * spec.layers + 1) * spec.hidden * FP32 if sp else 0
    assert sent == layers + ends + loss + kv_heads + norms


def _weight_sizes(spec):
    """Elements of each weight as the model fuses them: q with k and v, gate with up."""
    tensors = {t.name: t.numel for t in spec.tensors()}
    for i in range(spec.layers):
        tensors[f"layers.{i}.q"] += tensors.pop(f"layers.{i}.k") + tensors.pop(f"layers.{i}.v")
        tensors[f"layers.{i}.gate"] += tensors.pop(f"layers.{i}.up")
    return tensors.values()


def _shared_kv_elements(spec):
    """All KV heads of k and v travel in one buffer, in every layer."""
    return spec.layers * 2 * spec.kv_heads * spec.head_dim * spec.hidden
