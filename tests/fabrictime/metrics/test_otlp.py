"""Metrics are pushed to an OTLP receiver with values, labels, units and the version."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from fabrictime.metrics.otlp import OtlpPush
from schemas.metrics.base import Sample

SAMPLES = [
    Sample("fabrictime_probes_sent_total", 41.0),
    Sample("fabrictime_links", 3.0, ("DOWN",)),
    Sample("fabrictime_log_append_seconds_sum", 1.5),
    Sample("fabrictime_log_append_seconds_count", 6.0),
]


class Receiver:
    """A receiver of OTLP over HTTP on a drawn port."""

    def __init__(self):
        self.requests, received = [], self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                received.requests.append((self.path, ExportMetricsServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver():
    started = Receiver()
    yield started
    started.close()


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
