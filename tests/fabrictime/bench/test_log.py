"""The log bench: every message passes, and figures are finite."""

from __future__ import annotations

from fabrictime.bench import log as bench
from fabrictime.bench._machine import peak_mb


def test_throughput_and_latency_of_the_embedded_log(tmp_path):
    with bench.embedded(tmp_path) as (address, process):
        assert bench.throughput(address, "large", 300, bench.MESSAGE_BYTES) > 10
        p50, p99 = bench.latency_ms(address, "pings", 20)
        assert 0 < p50 <= p99 < 5000
        assert 10 < peak_mb(process.pid) < 300
    assert not process.is_running()
