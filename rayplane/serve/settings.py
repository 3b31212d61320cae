"""What a serving job means for one rank of a replica: limits of the scheduler, sizes of buffers and of the cache.

step       max_tokens   serve.batch.max_tokens; 8192, or 512 on CPUs, of which at most 64 are of prompts where others decode
logits     max_rows     a row per sequence and draft, of those that fit into a step
cache      blocks       as many as memory holds, but no more than max_sequences sequences of max_context tokens need

cache memory = kv.memory * device - weights - buffers      on a GPU
             = kv.memory * what is free, CPU_CACHE_BYTES at most, / ranks of the replica      on CPUs, whose memory others use too
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from rayplane.comm.mesh import Mesh
from rayplane.errors import Problem, SpecError
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.rank import Serving, block_bytes
from rayplane.spec.job import ServeJob
from rayplane.spec.model import ModelSpec
from rayplane.spec.source import load_model, model_folder

STEP_TOKENS, STEP_TOKENS_ON_CPU = 8192, 512
PROMPT_TOKENS_ON_CPU = 64
"""Of a step that also decodes: a larger part of prompts would hold up the next tokens of the others, and is computed no faster."""
CPU_CACHE_BYTES = 4 * 2**30
"""Of all ranks of a replica together."""
WORKSPACE = 0.1
"""Share of a GPU's memory for buffers, kernels and what fragmentation loses."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one rank."""

    job: ServeJob
    spec: ModelSpec
    serving: Serving
    prompt_tokens: int
    """Most tokens of prompts in a step."""

    @property
    def num_drafts(self) -> int:
        """Most tokens guessed per sequence and step."""
        return self.job.serve.speculative.tokens if self.job.serve.speculative else 0

    def limits(self, blocks: int, stages: int, cp: int = 1) -> SchedulerLimits:
        """Of the scheduler of a replica with so many blocks, stages and cp ranks, over which a block of the scheduler is striped.

        SpecError where the longest request does not fit.
        """
        serve, block = self.job.serve, self.serving.block * cp
        if blocks * block < self.serving.max_context:
            message = (
                f"{self.serving.max_context} tokens, and the cache holds {blocks * block}; lower it, or give the cache more memory"
            )
            raise SpecError(Problem(message, "serve.max_context"))
        return SchedulerLimits(
            num_blocks=blocks,
            max_context=self.serving.max_context,
            block_size=block,
            max_sequences=serve.batch.max_sequences,
            max_batch_tokens=self.serving.max_tokens,
            prefill_tokens=self.prompt_tokens,
            batches_in_flight=stages,
            prefix_cache=serve.kv.prefix_cache,
            num_drafts=self.num_drafts,
            longest_match=serve.speculative.match if serve.speculative else 1,
        )


def settings_of(job: ServeJob, device: torch.device, threads: int) -> Settings:
    """What ranks on this kind of device do. SpecError where the job names no weights."""
    serve, spec = job.serve, load_model(job.model)
    folder = model_folder(job.model)
    if folder is None:
        raise SpecError(Problem("a model without weights cannot be served; give its path", "model.path"))
    max_tokens = serve.batch.max_tokens or (STEP_TOKENS_ON_CPU if device.type == "cpu" else STEP_TOKENS)
    drafts = serve.speculative.tokens if serve.speculative else 0
    serving = Serving(
        path=folder,
        dtype=job.model.dtype or "bf16",
        kv_dtype=serve.kv.dtype,
        block=serve.kv.block,
        max_context=min(serve.max_context or spec.max_seq, spec.max_seq),
        max_tokens=max_tokens,
        max_rows=min(max_tokens, serve.batch.max_sequences * (1 + drafts)),
        threads=threads,
        timeout_s=job.limits.step_timeout_s,
    )
    most = PROMPT_TOKENS_ON_CPU if device.type == "cpu" and not serve.batch.max_tokens else max_tokens
    return Settings(job, spec, serving, most)


def cache_blocks(settings: Settings, mesh: Mesh) -> int:
    """As many as this rank has memory for, and any use for."""
    serving, serve = settings.serving, settings.job.serve
    useful = serve.batch.max_sequences * -(-serving.max_context // (serving.block * mesh.layout.cp))
    return min(useful, max(0, _cache_bytes(settings, mesh)) // block_bytes(settings.spec, serving, mesh))


def _cache_bytes(settings: Settings, mesh: Mesh) -> int:
    share = settings.job.serve.kv.memory
    if mesh.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(mesh.device)
        weights = settings.spec.num_params * (4 if settings.serving.dtype == "fp32" else 2) // (mesh.layout.pp * mesh.layout.tp)
        return int(min(free, share * total) - weights - WORKSPACE * total)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(share * free, CPU_CACHE_BYTES) / mesh.layout.size)
