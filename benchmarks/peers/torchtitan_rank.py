"""One rank of torchtitan on the reference model: its Llama, its parallelize and pipeline functions, optimizer and clipping, in the
order of its Trainer's train_step. The Trainer itself wants a GPU to ask for its memory.

Of its attention modules the one without document masks is taken: the samples here are not packed, and its default compiles for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist
from reference import BETAS, CLIP, EPS, GLOBAL_BATCH, LR, SEQ_LEN, SPEC, WEIGHT_DECAY, Meter, Task
from torch import nn
from torch.distributed.fsdp import FSDPModule

# What torchtitan asks when it is imported, to know its device.
torch._utils._get_available_device_type = lambda: "cpu"

from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig  # noqa: E402
from torchtitan.config import CommConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as titan  # noqa: E402
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import Llama3Model, parallelize_llama, pipeline_llm  # noqa: E402
from torchtitan.models.llama3 import _build_llama3_layers as build_layers  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

Tensor = torch.Tensor
NO_INIT: dict[str, Callable[[Tensor], object]] = {"weight": lambda w: w, "bias": lambda b: b}
"""The weights are given; nothing need be drawn for them."""


def model_config() -> Llama3Model.Config:
    """The reference model in torchtitan's words."""
    layers = build_layers(
        n_layers=SPEC.layers,
        dim=SPEC.hidden,
        n_heads=SPEC.heads,
        n_kv_heads=SPEC.kv_heads,
        hidden_dim=SPEC.mlp,
        rope=CosSinRoPE.Config(dim=SPEC.head_dim, max_seq_len=SEQ_LEN, theta=SPEC.rope.theta),
        fuse_qkv=True,
        attn_backend="flex",
    )
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Llama3Model.Config(
        dim=SPEC.hidden,
        vocab_size=SPEC.vocab,
        tok_embeddings=Embedding.Config(num_embeddings=SPEC.vocab, embedding_dim=SPEC.hidden, param_init=NO_INIT),
        norm=RMSNorm.Config(normalized_shape=SPEC.hidden, param_init=NO_INIT),
        lm_head=Linear.Config(in_features=SPEC.hidden, out_features=SPEC.vocab, param_init=NO_INIT),
        layers=layers,
    )


def config_of(task: Task) -> Trainer.Config:
    """The task in torchtitan's words."""
    training = TrainingConfig(
        local_batch_size=GLOBAL_BATCH // task.dp if task.pp > 1 else task.micro_batch,
        global_batch_size=GLOBAL_BATCH,
        seq_len=SEQ_LEN,
        max_norm=CLIP,
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=1 if task.zero else task.dp,
        data_parallel_shard_degree=task.dp if task.zero else 1,
        tensor_parallel_degree=task.tp,
        enable_sequence_parallel=task.sp,
        pipeline_parallel_degree=task.pp,
        pipeline_parallel_schedule=task.schedule or "1F1B",
        pipeline_parallel_microbatch_size=task.micro_batch,
        spmd_backend="partial_dtensor",
    )
    return Trainer.Config(training=training, parallelism=parallelism, activation_checkpoint=None, comm=CommConfig(trace_buf_size=0))


def load(model: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Take the initial weights, before the model is cut."""
    names = {"attention.wo": "o", "feed_forward.w1": "gate", "feed_forward.w3": "up", "feed_forward.w2": "down"}
    names |= {"attention_norm": "attn_norm", "ffn_norm": "mlp_norm"}
    ends = {"tok_embeddings": "embed", "lm_head": "head", "norm": "norm"}
    with torch.no_grad():
        for full, parameter in model.named_parameters():
            name = full.removesuffix(".weight")
            if name in ends:
                value = tensors[ends[name]]
            else:
                _, number, rest = name.split(".", 2)
                # The fused weight has one block of rows per KV head: its query heads, its keys, its values.
                parts = [tensors[f"layers.{number}.{n}"] for n in ("qkv" if rest.endswith("wqkv") else [names[rest]])]
                blocks = [x.reshape(SPEC.kv_heads, -1, SPEC.hidden) for x in parts] if len(parts) > 1 else parts
                value = np.concatenate(blocks, 1).reshape(parameter.shape) if len(parts) > 1 else parts[0]
            parameter.copy_(torch.from_numpy(value))


def optimizer_config() -> OptimizersContainer.Config:
    """AdamW; norms do not decay."""
    hyper = {"lr": LR, "betas": BETAS, "eps": EPS}
    groups = [
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**hyper, "weight_decay": decay})
        for pattern, decay in ((r"norm", 0.0), (r".*", WEIGHT_DECAY))
    ]
    return OptimizersContainer.Config(param_groups=groups)


class Titan:
    """What torchtitan's Trainer holds for a step."""

    def __init__(self, task: Task):
        config = config_of(task)
        size = titan.init_distributed(config.comm)
        self._task = task
        self._dims = dims = ParallelDims.from_config(config.parallelism, size)
        titan.set_spmd_backend(config.parallelism.spmd_backend)
        numbers = model_config()
        numbers.update_from_config(config=config)
        model = numbers.build()
        load(model, task.tensors())
        loss = CrossEntropyLoss.Config(global_vocab_size=SPEC.vocab).build(compile_config=config.compile)
        common = {
            "parallel_dims": dims,
            "training": config.training,
            "parallelism": config.parallelism,
            "compile_config": config.compile,
            "ac_config": None,
            "dump_folder": task.folder,
        }
        if task.pp > 1:
            device = torch.device("cpu")
            more = {"device": device, "model_config": numbers, "parallelize_fn": parallelize_llama, "loss_fn": loss}
            self._schedule, self._parts, self._first, self._last = pipeline_llm(model, **common, **more)
        else:
            self._parts = [parallelize_llama(model, **common)]
        for module in (m for part in self._parts for m in part.modules() if isinstance(m, FSDPModule)):
            # gloo has no other way to scale.
            module.set_force_sum_reduction_for_comms(True)
        self._loss, self._context = loss, titan.get_spmd_context(parallel_dims=dims)
        self._optimizers = optimizer_config().build(model_parts=self._parts)
        self._valid = torch.tensor(GLOBAL_BATCH * SEQ_LEN)

    def step(self, index: int) -> float | None:
        """One training step."""
        self._optimizers.zero_grad()
        replica = dist.get_rank() if self._task.dp > 1 else 0
        ids, targets = (torch.from_numpy(x).contiguous() for x in self._task.batch(index, replica))
        loss = self._pipeline(ids, targets) if self._task.pp > 1 else self._plain(ids, targets)
        parameters = [p for part in self._parts for p in part.parameters()]
        titan.clip_grad_norm_(parameters, CLIP, foreach=True, pp_mesh=self._dims.get_optional_mesh("pp"), ep_enabled=False)
        self._optimizers.step()
        return loss

    def _pipeline(self, ids: Tensor, targets: Tensor) -> float | None:
        losses: list[Tensor] | None = [] if self._last else None
        inputs = (ids,) if self._first else ()
        last = {"target": targets} if self._last else {}
        with self._context():
            # torch 2.13 cuts the batch itself; the lists of microbatches that torchtitan gives come with a later torch.
            self._schedule.step(*inputs, **last, losses=losses, loss_kwargs={"global_valid_tokens": self._valid}, return_outputs=False)
        return float(torch.stack(losses).sum()) if losses is not None else None

    def _plain(self, ids: Tensor, targets: Tensor) -> float:
        total = 0.0
        for x, y in zip(*(t.split(self._task.micro_batch) for t in (ids, targets)), strict=True):
            with self._context():
                loss, _ = self._loss(self._parts[0](x), y, self._valid)
                loss.backward()
            # A replica's loss is its share of the sum over all.
            total += float(loss.detach()) * self._task.dp
        return total


def main() -> None:
    task, meter = Task.read(), Meter()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    run = Titan(task)
    meter.measure(dist.get_rank(), task, run.step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
