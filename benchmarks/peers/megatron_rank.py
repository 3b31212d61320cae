"""One rank of Megatron-Core on the reference model: its GPTModel, schedules (1F1B; interleaved where vpp > 1), DDP and optimizer.

Megatron names CUDA in a dozen places outside its kernels; they are given the CPU here. Its own attention without Transformer Engine
makes the whole matrix of scores, so torch's fused attention is put in, through the layer spec, where Transformer Engine's would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import megatron.core.optimizer.optimizer as megatron_optimizer
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from reference import BETAS, CLIP, EPS, LR, SEQ_LEN, SPEC, WEIGHT_DECAY, Meter, Task

Tensor = torch.Tensor


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """A factory of tensors that takes "cuda" for the CPU."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return function(*args, device="cpu" if device == "cuda" else device, **kwargs)

    return made


def scale_by_norm(parameters: list[Tensor], max_norm: float, total_norm: float, **_: Any) -> None:
    """Megatron's clip_grad_by_total_norm_fp32, which asserts that gradients are on a GPU."""
    scale = max_norm / (total_norm + 1e-6)
    if scale < 1.0:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale)


def without_cuda() -> None:
    """Give the CPU wherever Megatron asks for the current GPU."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda: None
    for name in ("tensor", "zeros", "empty", "ones"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    megatron_optimizer.clip_grad_by_total_norm_fp32 = scale_by_norm


class FusedAttention(MegatronModule):
    """Causal attention of [S, B, h, D] queries by torch's fused kernel."""

    def __init__(self, config: TransformerConfig, **_: Any):
        super().__init__(config=config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:  # -> [S, B, h D]
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.permute(2, 0, 1, 3).flatten(2)


def config_of(task: Task) -> TransformerConfig:
    """The reference model in Megatron's words."""
    return TransformerConfig(
        num_layers=SPEC.layers,
        hidden_size=SPEC.hidden,
        num_attention_heads=SPEC.heads,
        num_query_groups=SPEC.kv_heads,
        kv_channels=SPEC.head_dim,
        ffn_hidden_size=SPEC.mlp,
        normalization="RMSNorm",
        layernorm_epsilon=SPEC.norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        bias_activation_fusion=True,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        cross_entropy_loss_fusion=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=task.tp,
        sequence_parallel=task.sp,
        pipeline_model_parallel_size=task.pp,
        virtual_pipeline_model_parallel_size=task.vpp if task.vpp > 1 else None,
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
        batch_p2p_comm=False,
        overlap_p2p_comm=task.vpp > 1,
        deallocate_pipeline_outputs=True,
    )


def chunks_of(task: Task, config: TransformerConfig) -> list[GPTModel]:
    """This rank's chunks with the given weights."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.self_attention.submodules.core_attention = FusedAttention
    chunks = []
    for vp in range(task.vpp):
        stage = vp if task.vpp > 1 else None
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
        model = GPTModel(
            config,
            layer,
            SPEC.vocab,
            SEQ_LEN,
            pre_process=first,
            post_process=last,
            parallel_output=True,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            rotary_base=int(SPEC.rope.theta),
            vp_stage=stage,
        )
        load(model, task.tensors(), vp * task.pp + parallel_state.get_pipeline_model_parallel_rank(), task)
        chunks.append(model)
    return chunks


def load(model: GPTModel, tensors: Mapping[str, np.ndarray], chunk: int, task: Task) -> None:
    """Take this rank's part of the weights; Megatron counts the layers of each chunk from 0."""
    first = task.layers(chunk).start
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(part(name, tensors, first, task.tp)))


def part(name: str, tensors: Mapping[str, np.ndarray], first_layer: int, tp: int) -> np.ndarray:
    """This tp rank's part of one of Megatron's parameters."""
    mine = partial(cut, tp=tp, rank=parallel_state.get_tensor_model_parallel_rank())
    ends = {"embedding.word_embeddings.weight": "embed", "output_layer.weight": "head"}
    if name in ends:
        return mine(tensors[ends[name]], 0)
    if name == "decoder.final_layernorm.weight":
        return tensors["norm"]
    _, _, number, rest = name.split(".", 3)
    layer = {n: f"layers.{first_layer + int(number)}.{n}" for n in ("q", "k", "v", "o", "gate", "up", "down", "attn_norm", "mlp_norm")}
    match rest:
        case "self_attention.linear_qkv.weight":
            # One block of rows per KV head: its query heads, its keys, its values.
            q, k, v = (tensors[layer[n]].reshape(SPEC.kv_heads, -1, SPEC.hidden) for n in "qkv")
            return mine(np.concatenate((q, k, v), 1).reshape(-1, SPEC.hidden), 0)
        case "self_attention.linear_proj.weight":
            return mine(tensors[layer["o"]], 1)
        case "mlp.linear_fc1.weight":
            return np.concatenate([mine(tensors[layer[n]], 0) for n in ("gate", "up")])
        case "mlp.linear_fc2.weight":
            return mine(tensors[layer["down"]], 1)
        case "input_layernorm.weight":
            return tensors[layer["attn_norm"]]
        case "pre_mlp_layernorm.weight":
            return tensors[layer["mlp_norm"]]
    raise KeyError(name)


def cut(x: np.ndarray, axis: int, tp: int, rank: int) -> np.ndarray:
    """Part `rank` of tp equal ones."""
    return np.split(x, tp, axis)[rank]


def forward_step(batches: Iterator[tuple[Tensor, Tensor]], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """One microbatch, as Megatron's schedules ask for it."""
    ids, targets = next(batches)
    positions = torch.arange(SEQ_LEN)[None].expand_as(ids)

    def loss(per_token: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mean = per_token.float().mean()
        return mean, {"loss": mean.detach().clone()}

    return model(ids, positions, None, labels=targets), loss


def main() -> None:
    task, meter = Task.read(), Meter()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    without_cuda()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(task.tp, task.pp, task.vpp if task.vpp > 1 else None)
    config = config_of(task)
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=task.dp > 1, average_in_collective=False)
    chunks = [DistributedDataParallel(config, ddp, chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks_of(task, config))]
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=LR,
        min_lr=LR,
        weight_decay=WEIGHT_DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_eps=EPS,
        clip_grad=CLIP,
    )
    optimizer = get_megatron_optimizer(optimizer_config, chunks)
    config.finalize_model_grads_func = finalize_model_grads
    forward_backward, replica = get_forward_backward_func(), parallel_state.get_data_parallel_rank()

    def step(index: int) -> float | None:
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        parts = [torch.from_numpy(x).split(task.micro_batch) for x in task.batch(index, replica)]
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=[iter(list(zip(*parts, strict=True))) for _ in chunks],
            model=chunks,
            num_microbatches=task.num_microbatches,
            seq_length=SEQ_LEN,
            micro_batch_size=task.micro_batch,
            forward_only=False,
        )
        optimizer.step()
        return sum(float(x["loss"]) for x in losses) / task.num_microbatches if losses else None

    meter.measure(dist.get_rank(), task, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
