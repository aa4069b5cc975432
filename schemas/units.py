"""Formats numbers with three significant digits and the fitting unit, for example `12.3 µs`."""

from __future__ import annotations

import math


def delay_text(ns: float | None) -> str:
    """Return a delay as text in ns, us, ms or s; a dash for None."""
    if ns is None or not math.isfinite(ns):
        return "—"
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size * 0.9995:
            return f"{_three(ns / size)} {unit}"
    return f"{_three(ns)} ns"


def signed_delay_text(ns: float) -> str:
    """Return a delay as text, with `+` before a positive value."""
    return ("+" if ns > 0 else "") + delay_text(ns)


def ms_text(ms: float) -> str:
    """Return milliseconds in the unit that fits."""
    return delay_text(ms * 1e6)


def seconds_text(seconds: float) -> str:
    """Return a duration as text: with tenths of a second below 10 s, then in whole s, min, h or d."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def count_text(count: float) -> str:
    """Return a count as text: exact below 10,000, then in k, M or G."""
    if count < 10_000:
        return f"{count:,.0f}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size * 0.9995:
            return f"{_three(count / size)}{unit}"
    return f"{count:,.0f}"


def counted(count: float, noun: str) -> str:
    """Return a count and its noun as text, with the noun in the plural unless the count is one."""
    return f"{count_text(count)} {noun}{'s' * (count != 1)}"


def number_text(value: float, digits: int = 3) -> str:
    """Return a number as text with `digits` significant digits, no exponent, and commas at thousands."""
    if not math.isfinite(value):
        return str(value)
    size = math.floor(math.log10(abs(value))) if value else 0
    decimals = max(digits - 1 - size, 0)
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate_text(per_s: float) -> str:
    """Return a rate per second as text with a unit, such as `1.2 k/s`."""
    return f"{count_text(per_s)}/s"


def percent_text(share: float) -> str:
    """Return a share (0 to 1) in per cent; a share above 0 is never shown as 0."""
    percent = share * 100
    if percent == 0:
        return "0%"
    if percent < 0.01:
        return "<0.01%"
    return f"{percent:.2g}%" if percent < 10 else f"{percent:.0f}%"


def bytes_text(size: float) -> str:
    """Return a size in B, kB, MB or GB (powers of 1,000)."""
    for unit_size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit_size * 0.9995:
            return f"{_three(size / unit_size)} {unit}"
    return f"{size:.0f} B"


def bps_text(bps: float) -> str:
    """Return a rate in bit/s, kbit/s, Mbit/s, Gbit/s or Tbit/s."""
    for size, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if abs(bps) >= size * 0.9995:
            return f"{_three(bps / size)} {unit}"
    return f"{bps:.0f} bit/s"


def _three(value: float) -> str:
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:.{digits}f}"
