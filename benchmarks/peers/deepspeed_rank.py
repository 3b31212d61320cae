"""One rank of DeepSpeed on the reference model: PipelineModule for pp (1F1B, or DualPipeV), its engine with or without ZeRO for dp,
AutoTP for tp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from decoder import Chunk, adamw, load, loss_of
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.dualpipev import DualPipeVModule
from reference import CLIP, SPEC, Meter, Task
from torch import nn

Tensor = torch.Tensor


class Layer(Chunk):
    """One layer as a module of its own; the pipe is cut by the number of these."""

    def __init__(self, index: int):
        super().__init__(range(index, index + 1), first=False, last=False)


class End(Chunk):
    """The embedding, or norm and head."""

    def __init__(self, first: bool):
        super().__init__(range(0), first, not first)


def tensor_parallel(task: Task) -> dict[str, Any]:
    """Which weights DeepSpeed cuts over tp, by rows or by columns of W."""
    cuts = {"row": "o|down", "column": "q|k|v|gate|up"}
    specs = [{"patterns": [rf".*\.({names})\.weight$"], "partition_type": kind} for kind, names in cuts.items()]
    return {"autotp_size": task.tp, "partition_config": {"use_default_specs": False, "layer_specs": specs}}


def config_of(task: Task) -> dict[str, Any]:
    """The task in DeepSpeed's words."""
    return {
        **({"tensor_parallel": tensor_parallel(task)} if task.tp > 1 else {}),
        "train_micro_batch_size_per_gpu": task.micro_batch,
        "gradient_accumulation_steps": task.num_microbatches,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": task.zero},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }


def engine_of(task: Task, model: nn.Module) -> Any:
    """DeepSpeed's engine around a model."""
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw([list(model.parameters())]), config=config_of(task))
    return engine


def pipeline(task: Task) -> Callable[[int], float]:
    """One step of a pipe. Its modules are numbered, which the names of the weights are not."""
    layers = [LayerSpec(End, True), *(LayerSpec(Layer, i) for i in range(SPEC.layers)), LayerSpec(End, False)]
    kind = DualPipeVModule if task.schedule == "DualPipeV" else PipelineModule
    model = kind(layers=layers, num_stages=task.pp, loss_fn=loss_of, partition_method="type:Layer")
    for module in model.children():
        load(module, task.tensors())
    engine = engine_of(task, model)

    def step(index: int) -> float:
        parts = [torch.from_numpy(x).split(task.micro_batch) for x in task.batch(index)]
        return float(engine.train_batch(iter(list(zip(*parts, strict=True)))))

    return step


def plain(task: Task) -> Callable[[int], float]:
    """One step of the whole model on every rank."""
    model = Chunk(range(SPEC.layers), first=True, last=True)
    load(model, task.tensors())
    engine = engine_of(task, model)

    def step(index: int) -> float:
        ids, targets = (torch.from_numpy(x) for x in task.batch(index, dist.get_rank() if task.dp > 1 else 0))
        total = 0.0
        for part, expected in zip(ids.split(task.micro_batch), targets.split(task.micro_batch), strict=True):
            loss = loss_of(engine(part), expected)
            engine.backward(loss)
            engine.step()
            total += float(loss.detach()) / task.num_microbatches
        return total

    return step


def main() -> None:
    task, meter = Task.read(), Meter()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    deepspeed.init_distributed("gloo")
    step = pipeline(task) if task.pp > 1 else plain(task)
    meter.measure(dist.get_rank(), task, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
