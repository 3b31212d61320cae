"""One rank of plain torch on the reference model, started by torchrun: torch_rank.py PORT WARMUP STEPS LAYOUT-JSON.

torch.distributed.pipelining's Schedule1F1B for pp, DistributedDataParallel for dp, DTensor's parallel styles for tp; the same model,
data order, optimizer and clipping as rayplane_rank.py, written the way torch's own tutorials write it.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from reference import BETAS, CLIP, EPS, GLOBAL_BATCH, LR, SEQ_LEN, SPEC, WEIGHT_DECAY, measure, tokens
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, S, h, D]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, width, kv = SPEC.hidden, SPEC.heads * SPEC.head_dim, SPEC.kv_heads * SPEC.head_dim
        self.attn_norm, self.mlp_norm = nn.RMSNorm(hidden, SPEC.norm_eps), nn.RMSNorm(hidden, SPEC.norm_eps)
        self.q, self.k, self.v = (nn.Linear(hidden, n, bias=False) for n in (width, kv, kv))
        self.o = nn.Linear(width, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, SPEC.mlp, bias=False), nn.Linear(hidden, SPEC.mlp, bias=False)
        self.down = nn.Linear(SPEC.mlp, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (m(h).unflatten(-1, (-1, SPEC.head_dim)) for m in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Chunk(nn.Module):
    """Some layers, with the embedding and the head where they belong."""

    def __init__(self, layers: int, first: bool, last: bool):
        super().__init__()
        self.embed = nn.Embedding(SPEC.vocab, SPEC.hidden) if first else None
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(SPEC.hidden, SPEC.norm_eps) if last else None
        self.head = nn.Linear(SPEC.hidden, SPEC.vocab, bias=False) if last else None
        angles = torch.outer(torch.arange(SEQ_LEN), 1.0 / SPEC.rope.theta ** (torch.arange(0, SPEC.head_dim, 2) / SPEC.head_dim))
        self.register_buffer("cos", angles.cos()[:, None], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None], persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=SPEC.init_std)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(index: int, offset: int, size: int) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(tokens().astype("int64"))
    starts = [((index * GLOBAL_BATCH + offset + i) % 255) * SEQ_LEN for i in range(size)]
    data = torch.stack([rows[s : s + SEQ_LEN + 1] for s in starts])
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def clip(model: nn.Module, pipe: bool) -> None:
    """Global norm over all ranks of a pipe; torch's own function elsewhere."""
    if not pipe:
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return
    square = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum()
    dist.all_reduce(square)
    scale = (CLIP / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(scale)


def clip_tensor_parallel(model: nn.Module) -> None:
    """clip_grad_norm_ fails on a mix of tensors and DTensors; the local parts are normed here."""
    local = torch.zeros(())
    replicated = torch.zeros(())
    for p in model.parameters():
        if isinstance(p.grad, DTensor):
            local += p.grad.to_local().square().sum()
        elif p.grad is not None:
            replicated += p.grad.square().sum()
    dist.all_reduce(local)
    scale = (CLIP / ((local + replicated).sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        if p.grad is not None:
            (p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad).mul_(scale)


def main() -> None:
    warmup, steps, layout = int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, pp, dp, tp, micro = dist.get_rank(), layout["pp"], layout["dp"], layout["tp"], layout["micro_batch"]
    size = GLOBAL_BATCH // dp
    model: nn.Module = Chunk(layout["boundaries"][rank] if pp > 1 else SPEC.layers, pp == 1 or rank == 0, pp == 1 or rank == pp - 1)
    if tp > 1:
        model = tensor_parallel(model, tp)
    wrapped = DistributedDataParallel(model) if dp > 1 else model
    # One fused call cannot take tensors and DTensors together.
    kinds = [[p for p in model.parameters() if isinstance(p, DTensor) is cut] for cut in (True, False)]
    optimizer = torch.optim.AdamW(
        [{"params": ps} for ps in kinds if ps], lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True
    )
    schedule = None
    if pp > 1:
        stage = PipelineStage(model, rank, pp, torch.device("cpu"))
        schedule = Schedule1F1B(stage, GLOBAL_BATCH // micro, loss_fn=loss_of)

    def pipeline_step(index: int) -> float:
        ids, targets = batch(index, 0, GLOBAL_BATCH)
        losses: list[Tensor] = []
        assert schedule is not None
        schedule.step(ids) if rank == 0 else schedule.step(target=targets, losses=losses) if rank == pp - 1 else schedule.step()
        clip(model, pipe=True)
        return float(torch.stack(losses).mean()) if losses else 0.0

    def plain_step(index: int) -> float:
        total = 0.0
        for first in range(0, size, micro):
            ids, targets = batch(index, (rank * size if dp > 1 else 0) + first, micro)
            if dp > 1:
                wrapped.require_backward_grad_sync = first + micro >= size
            loss = loss_of(wrapped(ids), targets) * (micro / size)
            loss.backward()
            total += float(loss.detach())
        clip_tensor_parallel(model) if tp > 1 else clip(model, pipe=False)
        return total

    def step(index: int) -> float:
        loss = pipeline_step(index) if pp > 1 else plain_step(index)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    measure(rank, step, warmup, steps)
    dist.destroy_process_group()


def tensor_parallel(model: nn.Module, tp: int) -> nn.Module:
    """Colwise and rowwise styles on each block, as in torch's tensor parallel tutorial; the head gives whole logits."""
    mesh = init_device_mesh("cpu", (tp,))
    plan: dict[str, ColwiseParallel | RowwiseParallel] = {}
    for i in range(SPEC.layers):
        plan |= {f"blocks.{i}.{n}": ColwiseParallel() for n in ("q", "k", "v", "gate", "up")}
        plan |= {f"blocks.{i}.{n}": RowwiseParallel() for n in ("o", "down")}
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, mesh, plan)


main()
