"""The executor: runs a rank's Action list for one step, on the model chunks of its stage.

F0.1   x = ids or the received activation; y = chunk(x); both are kept until
B0.1   backward from y's gradient; then they are freed
I W    the two halves of a backward: the gradient of x, and later those of the weights
RF/RB  post a receive; SF/SB send without waiting; R wait for the chunk's reduced gradients; O the optimizer step (the caller's)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rayplane.comm.mesh import Mesh
from rayplane.comm.p2p import BACKWARD, FORWARD, Pipe
from rayplane.model.layers import Place
from rayplane.model.parameter import Weight, Work
from rayplane.model.transformer import ModelChunk
from rayplane.spec.schedule import GIVES_WEIGHT_GRAD, Action, Op
from rayplane.train.gradients import Gradients
from rayplane.train.microbatch import Microbatch

Tensor = torch.Tensor


class Stage:
    """One rank's model chunks and the activations in flight."""

    def __init__(self, chunks: dict[int, ModelChunk], gradients: dict[int, Gradients], place: Place, mesh: Mesh, hidden: int):
        self._chunks, self._gradients, self._place, self._mesh = chunks, gradients, place, mesh
        self._work = place.grads
        self._hidden, self._last = hidden, mesh.layout.num_chunks - 1
        self._pipe = Pipe(mesh.axes["pp"], mesh.axes["pp_back"])
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._held: dict[tuple[int, int], Work] = {}
        # A tied weight of two chunks on this rank belongs to the first, whose backward comes last.
        self._owner = {w: c for c, chunk in reversed(chunks.items()) for w in chunk.weights()}
        self._work.on_adding, self._work.on_added = self._adding, self._added

    def run(
        self, actions: Sequence[Action], batch: Sequence[Microbatch], scale: float, step: Callable[[Sequence[Tensor]], None]
    ) -> list[Tensor]:
        """Execute one step and return the scaled loss of each microbatch (last stage). `scale` is 1 / tokens of the global batch.

        `step` is the optimizer step; it gets the losses.
        """
        self._losses: list[Tensor] = []
        last = {a.chunk: a for a in actions if a.op in GIVES_WEIGHT_GRAD}
        for action in actions:
            self._mesh.clock.about(action)
            match action.op:
                case Op.FORWARD:
                    self._forward(action, batch[action.microbatch], scale)
                case Op.BACKWARD:
                    self._backward(action, last[action.chunk])
                case Op.INPUT_GRAD:
                    self._work.hold()
                    self._backward(action, last[action.chunk])
                    self._held[_place(action)] = self._work.release()
                case Op.WEIGHT_GRAD:
                    self._weight_grad(action, last[action.chunk])
                case Op.RECV_F | Op.RECV_B:
                    self._post(action, batch[action.microbatch])
                case Op.SEND_F | Op.SEND_B:
                    self._send(action)
                case Op.REDUCE:
                    self._gradients[action.chunk].finish()
                case Op.STEP:
                    for gradients in self._gradients.values():
                        gradients.sum_tied()
                    step(self._losses)
        self._mesh.clock.about("")
        self._inputs.clear()
        self._outputs.clear()
        self._pipe.flush()
        return self._losses

    def _forward(self, action: Action, microbatch: Microbatch, scale: float) -> None:
        chunk = self._chunks[action.chunk]
        self._gradients[action.chunk].whole()
        x = microbatch.ids if action.chunk == 0 else self._input(action)
        with self._mesh.clock.phase("forward"):
            y = chunk(x, microbatch.ids.shape[0], microbatch.seq, microbatch.documents)
            if chunk.head is not None:
                y = chunk.head.loss(y, microbatch.targets.flatten(), scale)
                self._losses.append(y.detach())
        self._inputs[_place(action)], self._outputs[_place(action)] = x, y

    def _input(self, action: Action) -> Tensor:
        """The previous chunk's output: received, or handed over when that chunk is on this rank too."""
        if action.chunk - 1 in self._chunks:
            x = self._outputs[action.chunk - 1, action.microbatch].detach()
        else:
            x = self._pipe.take(FORWARD, *_place(action))
        return x.requires_grad_(torch.is_grad_enabled())

    def _weight_grad(self, action: Action, last: Action) -> None:
        if action is last:
            self._gradients[action.chunk].watch()
        with self._mesh.clock.phase("backward"):
            self._work.do(self._held.pop(_place(action)))

    def _backward(self, action: Action, last: Action) -> None:
        if action is last:
            self._gradients[action.chunk].watch()
        y, grad = self._outputs.pop(_place(action)), self._output_grad(action)
        with self._mesh.clock.phase("backward"):
            torch.autograd.backward(y, grad)
            self._work.run()
        if action.chunk == 0:
            del self._inputs[_place(action)]

    def _output_grad(self, action: Action) -> Tensor | None:
        """The gradient of a chunk's output: received, taken from the next chunk on this rank, or none for the loss."""
        if action.chunk == self._last:
            return None
        if action.chunk + 1 in self._chunks:
            return self._inputs.pop((action.chunk + 1, action.microbatch)).grad
        grad = self._pipe.take(BACKWARD, *_place(action))
        self._pipe.release(FORWARD, action.chunk + 1, action.microbatch)
        return grad

    def _post(self, action: Action, microbatch: Microbatch) -> None:
        direction, shift = (FORWARD, -1) if action.op is Op.RECV_F else (BACKWARD, 1)
        rows = self._place.rows(microbatch.ids.numel())
        num_rows = microbatch.ids.numel() if rows is None else rows[self._mesh.tp.rank]
        out = torch.empty((num_rows, self._hidden), dtype=self._place.dtype, device=self._mesh.device)
        self._pipe.post(out, self._mesh.layout.stage_of_chunk(action.chunk + shift), direction, *_place(action))

    def _send(self, action: Action) -> None:
        if action.op is Op.SEND_F:
            tensor, direction, target = self._outputs[_place(action)].detach(), FORWARD, action.chunk + 1
        else:
            grad = self._inputs.pop(_place(action)).grad
            assert grad is not None
            tensor, direction, target = grad, BACKWARD, action.chunk - 1
        self._pipe.send(tensor, self._mesh.layout.stage_of_chunk(target), direction, target, action.microbatch)

    def _adding(self, weight: Weight) -> None:
        self._gradients[self._owner[weight]].prepare(weight)

    def _added(self, weight: Weight) -> None:
        self._gradients[self._owner[weight]].added(weight)


def _place(action: Action) -> tuple[int, int]:
    return action.chunk, action.microbatch
