"""Metrics are pushed to an OTLP receiver with values, labels, units and the version."""

import socket
import time

import pytest

from fabrictime.metrics.otlp import CLOSE_S, OtlpPush
from schemas.metrics.base import Sample
from tests.fabrictime.metrics.otlp_receiver import OtlpReceiver

SAMPLES = [
    Sample("fabrictime_probes_sent_total", 41.0),
    Sample("fabrictime_links", 3.0, ("DOWN",)),
    Sample("fabrictime_log_append_seconds_sum", 1.5),
    Sample("fabrictime_log_append_seconds_count", 6.0),
]


@pytest.fixture
def receiver():
    started = OtlpReceiver()
    yield started
    started.close()


def test_the_end_pushes_once_more(receiver):
    OtlpPush(receiver.url, 3600, lambda: SAMPLES, "1").close()
    assert len(receiver.requests) == 1


def test_an_unreachable_receiver_does_not_delay_the_end(caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        push = OtlpPush(f"http://127.0.0.1:{unused.getsockname()[1]}/", 3600, lambda: SAMPLES, "1")
        began_s = time.monotonic()
        push.close()
    assert time.monotonic() - began_s < 3 * CLOSE_S
    assert "Transient error" in caplog.text


def test_a_push_carries_all_samples(receiver):
    collections = []

    def collect():
        collections.append(None)
        return SAMPLES

    push = OtlpPush(receiver.url, 3600, collect, "1.2.3")
    try:
        assert push.push()
    finally:
        push.close()
    path, request = receiver.requests[0]
    [resource] = request.resource_metrics
    attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert (path, attributes["service.name"], attributes["service.version"]) == (
        "/v1/metrics",
        "fabrictime",
        "1.2.3",
    )
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert len(metrics) == len(SAMPLES)
    sent = metrics["fabrictime_probes_sent"]
    assert sent.sum.is_monotonic
    assert (sent.unit, sent.sum.data_points[0].as_double) == ("{probes}", 41.0)
    [down] = metrics["fabrictime_links"].gauge.data_points
    labels = [(pair.key, pair.value.string_value) for pair in down.attributes]
    assert (labels, down.as_double) == ([("state", "DOWN")], 3.0)
    assert metrics["fabrictime_log_append_seconds_sum"].unit == "s"
    assert len(collections) <= 2 * len(receiver.requests), "one push collects once"
