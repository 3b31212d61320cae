"""What drivers and Ray call a GPU, and the catalog's name for it.

>>> kind_of("NVIDIA H100 80GB HBM3"), kind_of("A100-80G"), kind_of("AMD-Instinct-MI300X-OAM"), kind_of("Tesla T4")
('h100-sxm', 'a100-80gb', 'mi300x', '')
"""

from __future__ import annotations

import re

KINDS = (
    (r"\bG?B200\b", "b200"),
    (r"\bH200\b", "h200"),
    (r"\bH100\b.*PCIe", "h100-pcie"),
    (r"\bH100\b", "h100-sxm"),
    (r"\bA100\b.*80G", "a100-80gb"),
    (r"\bA100\b", "a100-40gb"),  # Ray's plain "A100" may be either: the smaller is safe
    (r"\bL40S\b", "l40s"),
    (r"\bMI300X\b", "mi300x"),
)
"""The first that matches."""


def kind_of(name: str) -> str:
    """The catalog's name of a GPU, or nothing where it has none."""
    return next((kind for pattern, kind in KINDS if re.search(pattern, name)), "")
