"""A published serving measurement in the planner's words: what was served, on what, by which engine, under which load.

What the engine did is told by general rules from the row's own backend, version, dtype, GPU, layout and load; no rule names a source:

    vllm        mixes prompts into decode, admits while there is room, scheduler before the model, since 0.14 beside it
    trtllm      mixes, admits with room for the whole output, scheduler beside the model but under pp; caches fp8 where weights are
    sglang      prompts first; a wave of equal requests stays together, since 0.5.4 it drifts apart as under mixing
    before 1.0  TensorRT-LLM's C++ runtime: launches quicker, scheduler before the model
    Blackwell   caches fp8
    batch       measured inside the process: no HTTP, no tokenizer
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from published_rows import KINDS as TRAINED_ON
from published_rows import CannotExpressError

from rayplane.plan.machine.catalog import DeviceKind, device
from rayplane.plan.serving.engine import RAYPLANE, Engine
from rayplane.plan.serving.served import Cut, Formats, Served, known

Row = dict[str, Any]
KINDS = (("RTX.?PRO.?6000", "rtx-pro-6000"), ("H100.*NVL", "h100-nvl"), ("H20$|H20[^0]", "h20"), ("B300", "b300"), *TRAINED_ON)
SERVED_ON = (("MI325", "mi325x"), ("MI355", "mi355x"), ("A10G?$", "a10"), ("L4$", "l4"), ("4090", "rtx-4090"))
"""The catalog's device for a row's GPU; the first that matches, GB300 before B300."""
DRIFT = 0.05
"""Requests of one length drift apart in a few rounds of mixing; played with lengths so far from one another."""
VLLM = Engine(step_s=0.75e-3, sequence_s=19e-6, token_s=50e-6, overlapped=False, launch_us=500.0)
TRTLLM = Engine(step_s=1.2e-3, sequence_s=35e-6, token_s=67e-6, launch_us=600.0, reserve=1.0, max_sequences=2048)
TRTLLM_CPP = replace(TRTLLM, step_s=5e-3, sequence_s=5e-6, launch_us=200.0, overlapped=False)
SGLANG = Engine(step_s=0.8e-3, sequence_s=40e-6, launch_us=250.0, prefill_first=True, reserve=0.7, memory_share=0.88)
FP8_BLOCKS = ("qwen3", "deepseek-v3", "kimi", "glm-4", "minimax")
"""Families whose own fp8 weights have a scale for each block; requantised by others they have one for each matrix."""
PUBLISHED = {"deepseek-v3": "fp8", "kimi": "fp8", "gpt-oss": "fp4"}
"""Formats that a family's weights are published in, where a row does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row, translated."""

    served: Served
    kind: DeviceKind
    memory_bytes: int
    cut: Cut
    replicas: int
    engine: Engine
    prompt: int
    output: int
    concurrency: int
    """Of one replica; 0: more requests always wait than it takes."""
    spread: float


def case_of(row: Row) -> Case:
    """Translate a row. Raises CannotExpressError with the reason where that is not possible."""
    kind = device(_kind(row["hardware"]["gpu"]))
    model = known(row["model"])
    devices = int(row["hardware"].get("n_gpus") or 0)
    cut = _cut(row["layout"], devices if model.experts else 0)
    replicas = max(1, devices // cut.size)
    degrees = (int(row["layout"].get(axis) or 1) for axis in ("tp", "pp", "cp", "dp", "ep"))
    if min(*degrees, int(row["isl"]), int(row["osl"])) < 1:
        raise CannotExpressError("contradicts itself: degrees, isl and osl are at least 1")
    if devices < cut.size:
        raise CannotExpressError(f"contradicts itself: a replica of {cut.size} devices, on {devices}")
    engine = engine_of(row, cut)
    together = engine.prefill_first and version_of(row) < (0, 5, 4)
    at_once = row.get("concurrency") or row.get("batch") or 0
    return Case(
        served=replace(model, formats=formats_of(row, model, kind, engine)),
        kind=kind,
        memory_bytes=kind.memory_bytes * 2**30 // 10**9,  # vendors count devices' memory in GiB
        cut=cut,
        replicas=replicas,
        engine=replace(engine, prefill_first=together),
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        concurrency=-(-int(at_once) // replicas),
        spread=0.0 if together else DRIFT,
    )


def engine_of(row: Row, cut: Cut) -> Engine:
    """What the engine did."""
    backend, title = (row.get("backend") or "").lower(), row["source"]["title"].lower()
    if "vllm" in backend or (not backend and "vllm" in title):
        engine = replace(VLLM, overlapped=version_of(row) >= (0, 14))
    elif "sglang" in backend or (not backend and "sglang" in title):
        engine = SGLANG
    elif "trt" in backend or "tensorrt" in title:
        old = not backend and (0,) < version_of(row) < (1,)
        engine = replace(TRTLLM_CPP if old else TRTLLM, overlapped=cut.pp == 1 and not old)
    else:
        engine = RAYPLANE
    if not row.get("concurrency"):
        engine = replace(engine, request_s=0.0, prompt_token_s=0.0, token_s=0.0)
        if row["osl"] == 1:
            engine = replace(engine, step_s=0.0, sequence_s=0.0)
    return engine


def version_of(row: Row) -> tuple[int, ...]:
    """The engine's, as numbers; () where neither the row nor its source's title says."""
    text = row.get("backend_version") or (found[1] if (found := re.search(r"\bv(\d+(?:\.\d+)+)", row["source"]["title"])) else "")
    return tuple(int(n) for n in re.findall(r"\d+", text.split("rc")[0].split("post")[0]))


def formats_of(row: Row, model: Served, kind: DeviceKind, engine: Engine) -> Formats:
    """Of weights, arithmetic, cache."""
    said, family = f"{row['dtype']} {row['model']}".lower(), model.model.name
    blackwell = "fp4" in kind.peak_flops
    if re.search(r"awq|gptq|int4|w4a16", said):
        return Formats("int4", "bf16", "fp8" if blackwell else "bf16")
    if re.search(r"int8|w8a8", said):
        return Formats("int8", "int8" if "int8" in kind.peak_flops else "bf16")
    published = next((f for name, f in PUBLISHED.items() if family.startswith(name)), "bf16")
    numbers = "fp4" if "fp4" in said else "fp8" if "fp8" in said else "bf16" if row["dtype"] else published
    if numbers == "bf16" or (numbers == "fp8" and "fp8" not in kind.peak_flops):
        return Formats()
    partly = "ffn" in said or (family.startswith("gpt-oss") and numbers == "fp4")
    return Formats(
        weights=numbers,
        compute=_computed(numbers, kind, partly),
        kv="fp8" if (blackwell or engine.reserve == 1.0) and not partly else "bf16",
        attention="bf16" if partly else "",
        blocks=family.startswith(FP8_BLOCKS) and not row["model"].startswith("nvidia/"),
    )


def _computed(numbers: str, kind: DeviceKind, partly: bool) -> str:
    """4-bit experts alone are multiplied with activations of 8 bits; without units for the format, with 16."""
    wanted = "fp8" if numbers == "fp4" and partly else numbers
    return wanted if wanted in kind.peak_flops and not (numbers == "fp4" and "fp4" not in kind.peak_flops) else "bf16"


def _kind(gpu: str) -> str:
    for pattern, kind in sorted((*KINDS, *SERVED_ON), key=lambda entry: not entry[0].startswith("GB")):
        if re.search(pattern, gpu, re.IGNORECASE):
            return kind
    raise CannotExpressError(f"GPU {gpu} is not in the catalog")


def _cut(layout: dict[str, Any], devices: int) -> Cut:
    """`devices` of a model with experts: where dp ranks share them, each has sequences of its own and all have the experts."""
    tp, pp, cp, dp, ep = (int(layout.get(axis) or 1) for axis in ("tp", "pp", "cp", "dp", "ep"))
    if layout.get("attention_dp") or layout.get("dp_attention"):
        dp = max(dp, tp)
        return Cut(tp=dp, pp=pp, cp=cp, ep=ep, attention_dp=dp)
    if dp > 1 and ep > 1 and devices and devices < dp * ep * pp * cp:
        return Cut(tp=tp * dp, pp=pp, cp=cp, ep=ep, attention_dp=dp)
    return Cut(tp=max(tp, ep), pp=pp, cp=cp, ep=ep)
