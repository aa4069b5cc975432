"""A service without a supervisor exports its own metrics; one with a supervisor answers on its socket."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fabrictime.metrics.processes import SOCKET_VARIABLE, read_socket
from schemas.run_module import module_command
from tests.waiting import wait_until


class LogService:
    """The embedded log as a service of its own, with logs as JSON."""

    def __init__(self, folder, **environment):
        settings = {
            "up": {"data_directory": str(folder / "data"), "log_format": "json"},
            "log": {"port": 0, "min_free_bytes": 0},
            "metrics": {"port": 0},
        }
        path, self.output = folder / "settings.json", folder / "log.out"
        path.write_text(json.dumps(settings))
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                module_command("fabrictime.runtime.service", "log", str(path)),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def lines(self):
        """Return the messages that the service has logged."""
        assert self.process.poll() is None, self.output.read_text()
        text = self.output.read_text()
        return [json.loads(line)["message"] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def line(self, pattern):
        """Wait for a message that matches; return the match."""
        return wait_until(
            lambda: next((m for line in self.lines() if (m := re.search(pattern, line))), None),
            60,
            name=pattern,
        )

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start():
    services = []

    def begin(folder, **environment):
        services.append(LogService(folder, **environment))
        return services[-1]

    yield begin
    for service in services:
        if service.process.poll() is None:
            service.close()


def test_a_service_alone_serves_its_metrics_and_ends_cleanly(start, tmp_path):
    service = start(tmp_path)
    url = service.line(r"metrics on (http://127\.0\.0\.1:\d+/metrics)").group(1)
    service.line("listening on")

    def scraped():
        with urllib.request.urlopen(url, timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {family.name: family for family in families}

    families = wait_until(lambda: "fabrictime_broker_size_bytes" in (seen := scraped()) and seen, 30)
    assert families["fabrictime_build_info"].samples[0].labels["version"]
    assert families["fabrictime_broker_connections"].samples[0].value == 0
    assert "fabrictime_processes" not in families, "only a supervisor has these"
    assert service.close() == 0


def test_a_child_answers_on_its_socket_and_opens_no_port(start, tmp_path):
    path = tmp_path / "metrics" / "log.sock"
    service = start(tmp_path, **{SOCKET_VARIABLE: str(path)})
    service.line("listening on")
    names = {sample.name for sample in wait_until(lambda: path.exists() and read_socket(path), 30)}
    assert {"fabrictime_cpu_seconds_total", "fabrictime_broker_size_bytes"} <= names
    assert not [line for line in service.lines() if "metrics on" in line]
    assert service.close() == 0
    assert not path.exists()
