"""The containers' commands run as plain processes with the rendered settings, and answer their probes.

A folder of the test replaces the paths of the image, an embedded log replaces Kafka.
"""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from schemas.run_module import module_command
from tests.embedded_log import EmbeddedLog
from tests.kubernetes import charts
from tests.kubernetes.charts import ROOT, VALUES, pod_specs
from tests.waiting import wait_until

RECEIVER = '\n[notify.receivers.pager]\ntype = "alertmanager"\nurl = "http://127.0.0.1:9"\n'
VALUES_HERE = {
    "config": VALUES["config"] + RECEIVER,
    "agent": {"devices": ["lo"]},
    "services": {"notify": {"enabled": True}},
}
GROUPS = ("worker", "links", "policy", "sink")


@pytest.fixture(name="manifests", scope="module")
def manifests_fixture(tmp_path_factory):
    done = charts.template(VALUES_HERE, tmp_path_factory.mktemp("values"))
    assert done.returncode == 0, done.stderr
    return charts.documents(done.stdout)


class Pod:
    """The containers of one pod as processes, with its mounts as folders below one folder."""

    def __init__(self, manifests, name, folder, log):
        self.spec, self.folder = pod_specs(manifests)[name], folder
        self.process = None
        [settings] = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
        self.paths = {
            mount["mountPath"]: folder / mount["name"]
            for container in charts.containers(self.spec)
            for mount in container["volumeMounts"]
        }
        for path in self.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        text = settings["fabrictime.toml"]
        for old, new in (
            ("kafka:9092", log),
            ("clickhouse:8123", "127.0.0.1:9"),
            ("topic_replication = 3", "topic_replication = 1"),
            ('[metrics]\nhost = "0.0.0.0"\nport = 8481', '[metrics]\nhost = "127.0.0.1"\nport = 0'),
            ('[web]\nhost = "0.0.0.0"', '[web]\nhost = "127.0.0.1"\nport = 0'),
        ):
            assert old in text, old
            text = text.replace(old, new)
        (self.paths["/etc/fabrictime"] / "fabrictime.toml").write_text(self.here(text))
        for name, secret in (
            ("probe", "probe.key"),
            ("writer", "password"),
            ("reader", "password"),
            ("page", "users"),
        ):
            if path := self.paths.get(f"/run/secrets/{name}"):
                (path / secret).touch(mode=0o600)
                (path / secret).write_bytes(
                    b"0123456789abcdef" if name != "page" else b"alice act 0123456789abcdef0123"
                )

    def here(self, text):
        """Return a text with the paths of the pod replaced by those of the test."""
        inside = "|".join(map(re.escape, self.paths))
        return re.sub(rf"(?:{inside})(?=/|$)", lambda match: str(self.paths[match[0]]), text)

    def initialise(self):
        """Run the initial containers to their end."""
        for container in self.spec["initContainers"]:
            command = module_command("fabrictime", *map(self.here, container["args"]))
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr

    def start(self):
        """Start the pod's container."""
        [self.container] = self.spec["containers"]
        self.output = self.folder / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                module_command("fabrictime", *map(self.here, self.container["args"])),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.paths["/tmp"])},
            )

    def line(self, pattern):
        """Wait for a line of output; return the match."""

        def search():
            assert self.process.poll() is None, self.output.read_text()[-2000:]
            return re.search(pattern, self.output.read_text())

        return wait_until(search, 90, name=pattern)

    def is_ready(self):
        """Run the readiness probe's command; return whether it succeeds."""
        command = [self.here(each) for each in self.container["readinessProbe"]["exec"]["command"]]
        if command[2] == "/opt/fabrictime/group_health.py":
            command = [sys.executable, str(ROOT / "docker/group_health.py"), *command[3:]]
        else:
            command = list(module_command(*command[3:]))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0

    def close(self):
        """Stop the container as the kubelet does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture(name="pod")
def pod_fixture(manifests, tmp_path):
    pods = []
    with EmbeddedLog(tmp_path / "log", create_topics=False) as log:

        def make(name):
            pods.append(Pod(manifests, name, tmp_path / name, log.bootstrap))
            return pods[-1]

        yield make
        for each in pods:
            if each.process is not None and each.process.poll() is None:
                each.close()


def _get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("name", GROUPS)
def test_a_stream_service_makes_its_topics_and_becomes_ready(name, pod):
    service = pod(name)
    service.initialise()
    service.initialise()
    service.start()
    url = service.line(r"metrics on (http://\S+)/metrics").group(1)
    probe = service.container["livenessProbe"]["httpGet"]
    status, text = _get(url + probe["path"])
    assert status == 200
    assert "fabrictime_build_info" in text
    wait_until(service.is_ready, 60, every_s=0.2, name="the group is stable")
    assert service.close() == 0


def test_the_page_answers_its_probe(pod):
    pod("worker").initialise()
    page = pod("web")
    page.start()
    url = page.line(r"(http://127\.0\.0\.1:\d+)(?!/metrics|\d)").group(1)
    status, _ = _get(url + page.container["readinessProbe"]["httpGet"]["path"])
    assert status == 200
    assert page.close() == 0


def test_the_notifier_runs_with_its_receivers(pod):
    pod("worker").initialise()
    notifier = pod("notify")
    notifier.start()
    url = notifier.line(r"metrics on (http://\S+/metrics)").group(1)
    wait_until(
        lambda: "fabrictime_notifications_waiting" in _get(url)[1], 60, name="the receivers are counted"
    )
    assert notifier.close() == 0


@pytest.mark.slow("starts all processes of an agent")
def test_the_agent_finds_its_nic_and_reports(pod):
    pod("worker").initialise()
    agent = pod("agent")
    agent.initialise()
    agent.start()
    wait_until(agent.is_ready, 90, every_s=0.5, name="`fabrictime status` answers")
    assert agent.process.poll() is None
    fleet = (agent.paths["/run/fabrictime"] / "fleet.toml").read_text()
    assert 'device = "lo"' in fleet
    assert agent.close() == 0
