"""The triad's figure on this machine."""

from __future__ import annotations

from producers.audit.host.base import STREAM
from producers.audit.host.live import LiveHost
from producers.audit.load.stream import triad_gb_per_s


def test_a_small_triad() -> None:
    assert 0.01 < triad_gb_per_s(2, array_bytes=1 << 20, times=2) < 100_000


def test_the_command_prints_one_figure() -> None:
    assert float(LiveHost().load(120.0, STREAM)) > 0.01
