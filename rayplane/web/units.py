"""Numbers as a reader wants them: three digits and a unit.

12_000_000 bytes   12.0 MB            0.0123 of 1   1.2%
1.05 against 1     +5.0%              919_432       919,432
"""

from __future__ import annotations

MINUS, TIMES, NOTHING = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(num_bytes: float) -> str:
    """Bytes in powers of ten."""
    for unit, name in _SIZES:
        if abs(num_bytes) >= unit:
            return f"{_digits(num_bytes / unit)} {name}"
    return f"{num_bytes:.0f} B"


def percent(share: float) -> str:
    """A share of one; a decimal below ten percent."""
    if 1e-9 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.0f}%" if abs(share) >= 0.0995 or share < 1e-9 else f"{100 * share:.1f}%"


def against(value: float, base: float) -> str:
    """How much longer, or shorter, than a base."""
    if not base:
        return ""
    change = value / base - 1
    return "the same" if abs(change) < 0.0005 else f"{100 * change:+.1f}%".replace("-", MINUS)


def round_seconds(value: float) -> str:
    """Of a round number: no digit that says nothing."""
    return f"{value:g} s" if value >= 1 or value == 0 else f"{1e3 * value:g} ms" if value >= 1e-3 else f"{1e6 * value:g} µs"


def round_percent(share: float) -> str:
    """Likewise."""
    return f"{100 * share:g}%"


def counted(number: int, what: str, plural: str = "") -> str:
    """`1 stage`, `2 stages`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {plural or what + 's'}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"
