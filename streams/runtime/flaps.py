"""Decides whether a link, NIC or host that goes down repeatedly is FLAPPING."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from streams.runtime.units import NS_PER_S

BURST: Final = 5
"""This many flaps within `BURST_NS` are too many, whatever `flaps_max` is. Switches disable a port at 5 flaps
within 10 s by default (errdisable of Cisco IOS and OcNOS, link-flap protection of Huawei).
"""
BURST_NS: Final = 10 * NS_PER_S


def is_flapping(flap_ns: Sequence[int], max_flaps: float) -> bool:
    """Return whether there are over `max_flaps` flaps, or a burst. `flap_ns`: times, ns, oldest first."""
    last_of_bursts = islice(flap_ns, BURST - 1, None)
    spans_ns = (last - first for first, last in zip(flap_ns, last_of_bursts, strict=False))
    return len(flap_ns) > max_flaps or any(span_ns <= BURST_NS for span_ns in spans_ns)
