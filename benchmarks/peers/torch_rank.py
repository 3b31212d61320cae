"""One rank of plain torch on the reference model: torch.distributed.pipelining for pp, DistributedDataParallel for dp, DTensor's
parallel styles for tp, written the way torch's own tutorials write them.

Schedules by torch's names; those of several chunks a rank lay them round the ranks, ZBVZeroBubble and DualPipeV down and up again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from decoder import Chunk, adamw, load, loss_of
from reference import CLIP, SPEC, Meter, Task
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def local(grad: Tensor) -> Tensor:
    """This rank's part of a gradient."""
    return grad.to_local() if isinstance(grad, DTensor) else grad


def clip(parameters: list[nn.Parameter], all_differ: bool) -> None:
    """By the norm over all ranks. `all_differ`: every rank holds other parameters (pp); else what is no DTensor counts once."""
    grads = [p.grad for p in parameters if p.grad is not None]
    cut = [local(g) for g in grads if all_differ or isinstance(g, DTensor)]
    whole = [g for g in grads if not (all_differ or isinstance(g, DTensor))]
    square = nn.utils.get_total_norm(cut).square()
    if cut:
        dist.all_reduce(square)
    norm = (square + nn.utils.get_total_norm(whole).square()).sqrt()
    torch._foreach_mul_([*cut, *whole], (CLIP / (norm + 1e-6)).clamp(max=1.0))


def pipeline(task: Task, rank: int) -> tuple[list[nn.Parameter], Callable[[int], float | None]]:
    """This rank's chunks, and forward and backward of a step."""
    kind = get_schedule_class(task.schedule)
    num, v_shaped = task.pp * task.vpp, task.schedule in V_SHAPED
    mine = [rank, num - 1 - rank] if v_shaped else list(range(rank, num, task.pp))
    stages, parameters = [], []
    for c in mine:
        chunk = Chunk(task.layers(c), c == 0, c == num - 1)
        load(chunk, task.tensors())
        parameters += list(chunk.parameters())
        stages.append(PipelineStage(chunk, c, num, torch.device("cpu")))
    given = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
    schedule = kind(given, task.num_microbatches, loss_fn=loss_of)

    def step(index: int) -> float | None:
        ids, targets = (torch.from_numpy(x).contiguous() for x in task.batch(index))
        losses: list[Tensor] = []
        inputs = (ids,) if 0 in mine else ()
        last = {"target": targets, "losses": losses} if num - 1 in mine else {}
        schedule.step(*inputs, **last, return_outputs=False)
        return float(torch.stack(losses).mean()) if losses else None

    return parameters, step


def plain(task: Task, rank: int) -> tuple[list[nn.Parameter], Callable[[int], float | None]]:
    """The whole model, its layers cut over tp or its replicas joined over dp, and forward and backward of a step."""
    model: nn.Module = Chunk(range(SPEC.layers), True, True)
    load(model, task.tensors())
    if task.tp > 1:
        model = tensor_parallel(model, task.tp)
    wrapped = DistributedDataParallel(model) if task.dp > 1 else model

    def step(index: int) -> float | None:
        ids, targets = (torch.from_numpy(x) for x in task.batch(index, rank if task.dp > 1 else 0))
        total, rest = 0.0, task.num_microbatches
        for part, expected in zip(ids.split(task.micro_batch), targets.split(task.micro_batch), strict=True):
            rest -= 1
            if task.dp > 1:
                wrapped.require_backward_grad_sync = rest == 0
            loss = loss_of(wrapped(part), expected) / task.num_microbatches
            loss.backward()
            total += float(loss.detach())
        return total

    return list(model.parameters()), step


def tensor_parallel(model: nn.Module, tp: int) -> nn.Module:
    """Colwise and rowwise styles on each block, as in torch's tensor parallel tutorial; the head gives whole logits."""
    plan: dict[str, ColwiseParallel | RowwiseParallel] = {}
    for i in range(SPEC.layers):
        plan |= {f"layers.{i}.{n}": ColwiseParallel() for n in ("q", "k", "v", "gate", "up")}
        plan |= {f"layers.{i}.{n}": RowwiseParallel() for n in ("o", "down")}
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, init_device_mesh("cpu", (tp,)), plan)


def main() -> None:
    task, meter = Task.read(), Meter()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    parameters, forward_backward = (pipeline if task.pp > 1 else plain)(task, rank)
    # One fused call cannot take tensors and DTensors together.
    optimizer = adamw([[p for p in parameters if isinstance(p, DTensor) is cut] for cut in (True, False)])

    def step(index: int) -> float | None:
        loss = forward_backward(index)
        clip(parameters, all_differ=task.pp > 1)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    meter.measure(rank, task, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
