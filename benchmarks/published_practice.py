"""What the software of a published run did, told by general rules from the row's own dtype, GPU, year, layout and notes.

    zero 3, or 2 without a pipe    torch's FSDP: copies into and out of its buffers, gathers and reductions beside compute since 2023
    else, gated before 2024        research code: single operations, gradients in bf16, logits gathered over tp
    else                           the Megatron family: fused; since 2022 products add to gradients, since 2024 it overlaps
    before 2023, or 2024           attention through memory, with dropout
    notes                          attention kernel, mixed-precision mode, compile, where they say so

No rule names a source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from rayplane.plan.step.practice import Practice

Row = dict[str, Any]
Attention = Literal["flash", "flash1", "flash2", "unfused", "eager"]
HOPPER_ON = ("h100", "h200", "b200", "gb")
LONG = 4096
"""Longer sequences took flash attention at any time."""


def year_of(row: Row) -> int:
    """When it was measured, as far as the row tells (a paper appears about half a year later); else by what it did."""
    source = row["source"]
    text = f"{row['id']} {source['title']} {source.get('ref', '')}"
    if found := re.search(r"arxiv[: ]*(\d\d)(\d\d)\.\d{4,5}", text, re.IGNORECASE):
        return 2000 + int(found[1]) - (int(found[2]) <= 6)
    if found := re.search(r"(?<!\d)20([12]\d)(?:0[1-9]|1[0-2])?(?!\d)", text) or re.search(r"\bv?(2\d)\.(?:0[1-9]|1[0-2])\b", text):
        return 2000 + int(found[1])
    if row["dtype"] == "fp16" or (row["layout"]["recompute"] == "full" and row["layout"]["pp"] > 1 and not row["model"]["gated_mlp"]):
        return 2022
    return 2023 if (row["hardware"]["gpu"] or "A100").startswith(("A100", "H100")) else 2025


@dataclass(frozen=True, slots=True)
class _Told:
    """What a row tells of its software."""

    year: int
    notes: str
    kind: str
    gated: bool
    fsdp: bool
    long: bool

    @property
    def research(self) -> bool:
        """Gated models before the Megatron family had them."""
        return self.gated and not self.fsdp and self.year <= 2023

    @property
    def modern(self) -> bool:
        """Whether everything that can overlap does."""
        return self.year >= 2024

    @property
    def compiled(self) -> bool:
        """By torch.compile."""
        return "compile" in self.notes


def practice_of(row: Row, kind: str) -> Practice:
    """What the software did; `kind` is the catalog's name of the device."""
    layout = row["layout"]
    told = _Told(
        year=year_of(row),
        notes=f"{row['id']} {row.get('notes') or ''}",
        kind=kind,
        gated=bool(row["model"]["gated_mlp"]),
        fsdp=layout["zero"] == 3 or (layout["zero"] == 2 and layout["tp"] == layout["pp"] == 1),
        long=row["model"]["seq"] > LONG,
    )
    return replace(
        _by_fsdp(told) if told.fsdp else _by_others(told, row["dtype"], layout["zero"] == 1),
        attention=_attention(told),
        fused=told.compiled or not told.gated or told.modern,
        fused_norms=told.compiled or not told.gated or told.modern or "RMS kernel" in told.notes,
        dropout=not told.gated and told.year <= (2022 if told.fsdp else 2023),
        dp_inside_pp=True,
        overlap_gather=told.modern,
        overlap_tp=told.modern,
        overlap_cp=told.modern,
        rolling="schedule=ZB" in told.notes,
    )


def _by_fsdp(told: _Told) -> Practice:
    early = told.year <= 2022
    return Practice(
        keeps_projected=False,
        calls_per_layer=4 if early else 1,
        regathered=early,
        overlap_dp=not early,
        selective_products=True,
        gathered_copies=18,
        reduce_bytes=4 if "DEFAULT" in told.notes else 2,
        logit_bytes=10 if told.compiled else 12 if told.year < 2025 else 6,
    )


def _by_others(told: _Told, dtype: str, zero_1: bool) -> Practice:
    early = dtype if told.year <= 2022 else ""
    narrow = told.research or early == "fp16"
    return Practice(
        keeps_projected=told.research,
        calls_per_layer=1,
        whole_reduction=zero_1 and told.year <= 2023,
        gradient_bytes=2 if narrow else 6 if early == "bf16" and zero_1 else 4,
        reduce_bytes=2 if narrow else 4,
        fused_accumulation=told.year >= 2022,
        overlap_dp=told.modern,
        gathered_logits=told.research,
        logit_bytes=16 if told.research else 10,
    )


def _attention(told: _Told) -> Attention:
    if found := re.search(r"attention kernel=(\w+)", told.notes):
        known: tuple[tuple[str, Attention], ...] = (("flash_attentionv1", "flash1"), ("torch", "eager"), ("fused", "unfused"))
        return next((kernel for prefix, kernel in known if found[1].startswith(prefix)), "flash2")
    if not told.long and told.year <= (2022 if told.fsdp or told.gated else 2023):
        return "unfused"
    newest: Attention = "flash" if told.kind.startswith(HOPPER_ON) else "flash2"
    if told.fsdp:
        return newest if told.year >= 2025 else "flash2" if told.modern or told.long else "flash1"
    return newest
