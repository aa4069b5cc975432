"""The log bench: every message passes, and figures are finite."""

from __future__ import annotations

from fabrictime.bench import log as bench
from fabrictime.bench._pipeline import embedded_log_service


def test_throughput_and_latency_of_the_embedded_log(tmp_path):
    with embedded_log_service(tmp_path, create_topics=False) as (address, broker):
        assert bench.throughput(address, "large", 300, bench.MESSAGE_BYTES) > 10
        p50, p99 = bench.latency_ms(address, "pings", 20)
        assert 0 < p50 <= p99 < 5000
        assert 10 < broker.peak_mb() < 300
    assert broker.process.poll() is not None
