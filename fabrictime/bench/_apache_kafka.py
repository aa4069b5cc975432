"""Runs an Apache Kafka of one node (KRaft) on loopback, for the log bench and for the conformance tests.

Needs Java 17 and Maven; the jars of a version come from Maven's repositories into a cache folder once. Yields
a running broker's address, or raises `NotAvailable` with the reason why no broker can run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fabrictime.bench._machine import free_ports
from fabrictime.bench._waiting import end_child, wait_for

VERSIONS: Final = ("3.9.1", "4.4.0")
"""The last of Kafka 3, and Kafka 4: both must serve every client."""
VERSION: Final = VERSIONS[-1]
ARTIFACT: Final = "org.apache.kafka:kafka_2.13"
JVM: Final = ("-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4")
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
START_S: Final = 180.0
FETCH_S: Final = 300.0

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fabrictime</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""

_PROPERTIES: Final = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
num.network.threads=2
num.io.threads=4
offsets.topic.replication.factor={replication}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=200
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
message.max.bytes=4194304
log.message.timestamp.type=LogAppendTime
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=100
log.cleaner.backoff.ms=300
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.io.buffer.size=262144
"""


class NotAvailable(Exception):
    """No Apache Kafka is available; the message contains the reason."""


def jars(version: str = VERSION) -> Path:
    """Return the folder of a version's jars; the first call downloads them. Raises NotAvailable."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None:
        raise NotAvailable("no java on this machine: Apache Kafka needs Java 17")
    if maven is None:
        raise NotAvailable("no mvn on this machine: Apache Kafka's jars come by Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fabrictime"
    target = cache / f"kafka-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(maven, version, cache, target)
    return target


def _fetch(maven: str, version: str, cache: Path, target: Path) -> None:
    group, artifact = ARTIFACT.split(":")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(_POM.format(group=group, artifact=artifact, version=version))
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}/jars",
        ]
        try:
            done = subprocess.run(
                command,
                check=False,
                timeout=FETCH_S,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise NotAvailable(f"Kafka's jars did not come by Maven within {FETCH_S:.0f} s") from None
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()] or ["no output"]
            raise NotAvailable(f"Kafka's jars cannot be had by Maven: {lines[0][:200]}")
        (Path(folder) / "jars").rename(target)


@contextmanager
def running(directory: Path, more_properties: str = "", version: str = VERSION) -> Iterator[str]:
    """Run a broker with its data in `directory` and yield its address. Raises NotAvailable.

    `more_properties` overrides the broker's properties; `{port}` and `{controller_port}` in it are filled in.
    """
    with running_cluster(directory, more_properties, version, size=1) as cluster:
        yield cluster.bootstrap


@contextmanager
def running_cluster(
    directory: Path, more_properties: str = "", version: str = VERSION, *, size: int = 3, heap_mb: int = 384
) -> Iterator[Cluster]:
    """Run `size` brokers, each of which is a controller too, and yield the cluster. Raises NotAvailable."""
    cluster = Cluster(
        directory, more_properties, ["java", f"-Xmx{heap_mb}m", *JVM, "-cp", f"{jars(version)}/*"], size
    )
    try:
        for number in range(size):
            cluster.format(number)
        for number in range(size):
            cluster.start(number)
        for number in range(size):
            cluster.wait(number)
        yield cluster
    finally:
        cluster.stop()


class Cluster:
    """Brokers of one cluster, numbered from 0, each with a folder below `directory`."""

    def __init__(self, directory: Path, more_properties: str, java: Sequence[str], size: int) -> None:
        self._directory, self._java = directory, java
        self._ports, controller_ports = free_ports(size), free_ports(size)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        voters = ",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(controller_ports))
        for number, port in enumerate(self._ports):
            text = (_PROPERTIES + more_properties).format(
                node=number + 1,
                voters=voters,
                replication=size,
                port=port,
                controller_port=controller_ports[number],
                directory=self._folder(number),
            )
            self._folder(number).mkdir()
            self._properties(number).write_text(text)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def format(self, number: int) -> None:
        """Format the folder of a broker. Raises NotAvailable."""
        command = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            _CLUSTER_ID,
            "-c",
            str(self._properties(number)),
        ]
        with self._output(number).open("wb") as output:
            done = subprocess.run(
                [*self._java, *command], check=False, timeout=START_S, stdout=output, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise NotAvailable(f"Apache Kafka cannot format its directory: {_last(self._output(number))}")

    def start(self, number: int) -> None:
        """Start a broker on its folder."""
        with self._output(number).open("ab") as output:
            self._processes[number] = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties(number))],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self, number: int) -> None:
        """Wait until a broker listens. Raises NotAvailable."""
        _wait(self._processes[number], self._ports[number], self._output(number))

    def kill(self, number: int) -> None:
        """End a broker by SIGKILL."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all brokers."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            end_child(process, signal.SIGTERM, 10)

    def _folder(self, number: int) -> Path:
        return self._directory / f"broker{number}"

    def _properties(self, number: int) -> Path:
        return self._folder(number) / "server.properties"

    def _output(self, number: int) -> Path:
        return self._folder(number) / "output"


def _wait(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    def listens() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    in_time = wait_for(lambda: process.poll() is not None or listens(), START_S)
    if process.poll() is not None:
        raise NotAvailable(f"Apache Kafka ended with {process.returncode}: {_last(output)}")
    if in_time is None:
        raise NotAvailable(f"Apache Kafka did not listen within {START_S:.0f} s: {_last(output)}")


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() or ["no output"]
    return lines[-1][:200]
