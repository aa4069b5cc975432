"""A real Prometheus scrapes a running `up` and evaluates the rules."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fabrictime.bench.operate._up import Up, agent_arguments
from fabrictime.metrics.rules import ALERTS, RECORDINGS, rules_file
from fabrictime.metrics.sizing import AGENT_SERVICES, series_of
from schemas.metrics.base import Detail
from schemas.metrics.common import AGENT
from schemas.metrics.table import METRICS
from tests.fabrictime.metrics.otlp_receiver import OtlpReceiver
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow("starts a whole pipeline and a Prometheus"),
    pytest.mark.timeout(600),
]

ABSENT = {
    "fabrictime_fleet_clock_bound_seconds",
    "fabrictime_fleet_clocks",
    "fabrictime_window_delay_seconds",
    "fabrictime_state_age_seconds",
}
"""Metrics that exist only after the first windows."""


class Prometheus:
    """Prometheus on a drawn port of loopback, with the rules of this release."""

    def __init__(self, folder, targets):
        folder.mkdir()
        (folder / "rules.yml").write_text(rules_file())
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "fabrictime-all", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.output = (folder / "prometheus.out").open("w+")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def get(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        assert self.process.poll() is None, self.output.read()
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return {}

    def query(self, expr):
        """Return label sets and values of an expression."""
        rows = self.get("query", query=expr).get("result", [])
        return [(row["metric"], float(row["value"][1])) for row in rows]

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.output.close()


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with Up(tmp_path_factory.mktemp("up"), "--fleet", "sim:8") as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(up, tmp_path_factory):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{unused.getsockname()[1]}"
        target = urllib.parse.urlsplit(up.addresses["metrics"]).netloc
        started = Prometheus(tmp_path_factory.mktemp("prometheus") / "run", [target, closed])
        with contextlib.closing(started):
            wait_until(lambda: started.query("up == 1"), 60, name="the first scrape")
            yield started


def test_all_metrics_of_the_running_services_are_scraped(prometheus):
    present = {"up", "sim", "worker", "links", "policy", "sink", "web", "log", "history", "act"}
    expected = {
        name
        for metric in METRICS
        for name in metric.sample_names
        if metric.detail is Detail.ALWAYS and (not metric.writers or set(metric.writers) & present)
    }
    assert not set(AGENT) - {"act"} & present
    wait_until(lambda: prometheus.query("fabrictime_fleet_clocks"), 120, name="the first clock windows")
    wait_until(lambda: prometheus.query("fabrictime_fleet_nics == 8"), 120, name="the page has read the NICs")
    names = set(prometheus.get("label/__name__/values"))
    assert expected - ABSENT <= names
    assert {name for name in names if name.startswith("fabrictime_")} <= {
        name for metric in METRICS for name in metric.sample_names
    }


def test_the_rules_are_evaluated_without_an_error(prometheus):
    def rules():
        groups = prometheus.get("rules").get("groups", [])
        loaded = [rule for group in groups for rule in group["rules"]]
        return loaded if loaded and all(rule["health"] != "unknown" for rule in loaded) else None

    loaded = wait_until(rules, 60, name="the first evaluation of the rules")
    assert len(loaded) == len(RECORDINGS) + len(ALERTS)
    assert [rule for rule in loaded if rule["health"] != "ok"] == []
    wait_until(lambda: prometheus.query("fabrictime:stage_records:rate5m > 0"), 120)
    assert prometheus.query('fabrictime:stage_records:rate5m{stage="links"}')


def test_a_target_that_does_not_answer_becomes_an_alert(prometheus):
    query = 'ALERTS{alertname="FabrictimeTargetDown"}'
    [(labels, _)] = wait_until(lambda: prometheus.query(query), 60)
    assert labels["alertstate"] == "pending"
    assert labels["severity"] == "warning"


def test_a_killed_process_shows_as_restart_and_no_counter_decreases(up, prometheus):
    rows = {row["name"]: row for row in up.state()["children"]}
    counter = "fabrictime_stage_records_total"
    wait_until(lambda: prometheus.query(f'{counter}{{stage="policy"}} > 0'), 60)
    os.kill(rows["policy"]["pid"], signal.SIGKILL)
    wait_until(lambda: prometheus.query('fabrictime_restarts_total{service="policy"} == 1'), 60)
    wait_until(lambda: prometheus.query('fabrictime_processes{state="not_ready"} == 0'), 120)
    assert [value for _, value in prometheus.query(f"max(resets({counter}[10m]))")] == [0]
    assert [value for _, value in prometheus.query("max(resets(fabrictime_cpu_seconds_total[10m]))")] == [0]


def samples_of(text):
    """Return the samples of a scraped text by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_agent_of_a_host_is_one_small_target_and_pushes_the_same(up, tmp_path):
    with contextlib.closing(OtlpReceiver()) as receiver:
        settings = f'otlp_endpoint = "{receiver.url}"\notlp_interval_s = 1\nper_nic = true\n'
        arguments = agent_arguments(tmp_path / "agent", up.addresses["log"])
        with Up(tmp_path / "agent", *arguments, settings=settings) as agent:
            sent = "fabrictime_nic_probes_sent_total"
            wait_until(lambda: samples_of(agent.scrape()).get((sent, "m1/lo2"), 0) > 100, 120)
            seen = samples_of(agent.scrape())
            assert seen["fabrictime_nics",] == 2
            assert seen["fabrictime_probes_sent_total",] == sum(
                value for key, value in seen.items() if key[0] == sent
            )
            assert seen["fabrictime_records_published_total",] > 0
            assert sum(value for key, value in seen.items() if key[0] == "fabrictime_clock_pages") == 1
            per_nic = [key for key in seen if key[0].startswith("fabrictime_nic_")]
            assert len(per_nic) == 6
            assert len(seen) - len(per_nic) <= series_of(AGENT_SERVICES)
            names = {metric.name for metric in wait_until(receiver.metrics, 60, name="a push")}
            assert {"fabrictime_probes_sent", "fabrictime_clock_pages"} <= names
