"""An Apache Kafka of one node (KRaft) on loopback, for the log bench and for the conformance tests.

In: Java 17 and Maven; the jars come from Maven's repositories into a cache folder once. Out: a running
broker's address, or `NotAvailable` with the reason why there is none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fabrictime.bench._fabric import end_child

VERSION: Final = "3.9.1"
ARTIFACT: Final = "org.apache.kafka:kafka_2.13"
JVM: Final = ("-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4")
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
START_S: Final = 60.0
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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
num.network.threads=2
num.io.threads=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
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


def jars() -> Path:
    """Return the folder of Kafka's jars; the first call downloads them. Raises NotAvailable."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None:
        raise NotAvailable("no java on this machine: Apache Kafka needs Java 17")
    if maven is None:
        raise NotAvailable("no mvn on this machine: Apache Kafka's jars come by Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fabrictime"
    target = cache / f"kafka-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(maven, cache, target)
    return target


def _fetch(maven: str, cache: Path, target: Path) -> None:
    group, artifact = ARTIFACT.split(":")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(_POM.format(group=group, artifact=artifact, version=VERSION))
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


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


@contextmanager
def running(directory: Path, more_properties: str = "") -> Iterator[str]:
    """Run a broker with its data in `directory` and yield its address. Raises NotAvailable.

    `more_properties` overrides the broker's properties; `{port}` and `{controller_port}` in it are filled in.
    """
    libraries = jars()
    port, controller_port = _free_ports(2)
    properties = directory / "server.properties"
    text = _PROPERTIES + more_properties
    properties.write_text(text.format(port=port, controller_port=controller_port, directory=directory))
    java = ["java", *JVM, "-cp", f"{libraries}/*"]
    output = (directory / "output").open("wb")
    with output:
        done = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)],
            check=False,
            timeout=START_S,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise NotAvailable(f"Apache Kafka cannot format its directory: {_last(directory / 'output')}")
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait(process, port, directory / "output")
            yield f"127.0.0.1:{port}"
        finally:
            end_child(process, signal.SIGTERM, 10)


def _wait(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotAvailable(f"Apache Kafka ended with {process.returncode}: {_last(output)}")
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise NotAvailable(f"Apache Kafka did not listen within {START_S:.0f} s: {_last(output)}")


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() or ["no output"]
    return lines[-1][:200]
