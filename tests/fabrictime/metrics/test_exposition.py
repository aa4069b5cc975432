"""Both formats of Prometheus can be parsed, with help, type and unit of each metric."""

import itertools
import socket
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from fabrictime.metrics.export import Exports
from fabrictime.metrics.exposition import SUFFIX_UNITS, Endpoint, _Timed
from fabrictime.metrics.settings import MetricsSettings
from schemas.metrics.base import Detail, Sample
from schemas.metrics.table import METRICS

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def every_series():
    """Return a sample of each declared combination of labels."""
    for metric in METRICS:
        values = [values or ("x",) for _, values in metric.labels]
        for labels in itertools.product(*values):
            for name in metric.sample_names:
                yield Sample(name, 2.0, labels)


def scrape(url, accept="text/plain"):
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


@pytest.fixture
def url():
    exports = Exports()
    exports.open(MetricsSettings(port=0), every_series)
    yield exports.url
    exports.close()


def test_text_format_has_help_and_type_of_each_metric(url):
    families = {family.name: family for family in prometheus(scrape(url))}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert {sample.name for sample in family.samples} == set(metric.sample_names)
        assert all(sample.value == 2.0 for sample in family.samples)
        assert all(tuple(sample.labels) == metric.label_names for sample in family.samples)


def test_openmetrics_has_the_base_units(url):
    families = {family.name: family for family in openmetrics(scrape(url, OPENMETRICS))}
    for metric in METRICS:
        unit = families[metric.name.removesuffix("_total")].unit
        assert unit == (metric.unit if metric.unit in SUFFIX_UNITS else "")


def test_a_taken_port_costs_the_endpoint_and_nothing_else(url, caplog):
    exports = Exports()
    exports.open(MetricsSettings(port=int(url.split(":")[2].split("/")[0])), every_series)
    assert exports.url is None
    assert "no metrics: " in caplog.text
    exports.close()


def test_settings_name_the_details():
    assert MetricsSettings(per_nic=True).details == {Detail.PER_NIC}


def test_a_client_that_sends_nothing_is_disconnected(monkeypatch, capfd):
    monkeypatch.setattr(_Timed, "timeout", 0.05)
    endpoint = Endpoint("127.0.0.1", 0, every_series)
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as client:
        assert client.recv(1) == b""
    endpoint.close()
    assert capfd.readouterr().err == ""
