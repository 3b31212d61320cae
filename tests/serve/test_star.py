"""Steps from rank 0 to all others, and what was drawn back."""

import pytest

from rayplane.serve.outputs import Sampled, TokenLogprob
from rayplane.serve.star import Hub, Spoke, join
from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks

DRAWN = [Sampled((1, 2)), Sampled((3,), (TokenLogprob(-0.5, ((3, -0.5), (4, -1.5))),)), Sampled((5,), ())]


@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(pp=2, tp=2), Layout(tp=3)], ids=str)
def test_every_rank_gets_every_step_in_order_and_the_drawing_one_answers(layout):
    drawing = next(r for r in range(layout.size) if layout.coord(r).pp == layout.pp - 1)

    def body(mesh):
        line = join(mesh, "127.0.0.1", drawing)
        if isinstance(line, Hub):
            steps = [bytes([n]) * (1 + n * 50_000) for n in range(3)]
            for step in steps:
                line.send(step)
            back = [line.receive() for _ in steps] if line.results is not None else []
            line.close()
            return steps, back
        got = []
        while (step := line.step()) is not None:
            got.append(bytes(step))
            if mesh.rank == drawing:
                line.send(DRAWN)
        return got

    (steps, back), *others = run_ranks(layout, body)
    assert others == [steps] * (layout.size - 1)
    assert back == ([DRAWN] * 3 if drawing else [])


def test_a_rank_that_leaves_is_noticed_by_rank_0():
    def body(mesh):
        line = join(mesh, "127.0.0.1", 1)
        if isinstance(line, Spoke):
            line._line.close()
            return
        with pytest.raises(ConnectionError):
            line.receive()
        return

    run_ranks(Layout(pp=2), body)


def test_one_rank_needs_no_line():
    ((hub,),) = [run_ranks(Layout(), lambda mesh: join(mesh, "127.0.0.1", 0))]
    assert isinstance(hub, Hub) and hub.results is None
    hub.send(b"step")
    hub.close()
