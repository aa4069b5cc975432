"""The webhook's server: verdicts from a real log, over HTTPS with a certificate that is renewed."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actuators.nodes.fitness import Fitness
from fabrictime.audit.webhook import PREFLIGHT
from fabrictime.audit.webhook_server import MAX_BODY, NodeVerdicts
from fabrictime.bench._pipeline import embedded_log
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.publisher import Publisher
from schemas.records import Repair, RepairState
from schemas.topics import AUDIT, REPAIRS
from tests.actuators.audit_results import run_of
from tests.records import make


def audited(verdicts: NodeVerdicts, *results: Any, at_ns: int) -> None:
    for record in results:
        verdicts.take(Message(at_ns, AUDIT.name, 0, 0, record["run"], b""), record)


def take_repair(verdicts: NodeVerdicts, state: RepairState | None) -> None:
    record = None if state is None else make(Repair, node="n1", state=state, reason="2 ECC errors")
    verdicts.take(Message(1, REPAIRS.name, 0, 0, "d1", b""), record)


def test_drains_and_failed_audits_make_a_node_unfit_until_they_end() -> None:
    verdicts, now_ns = NodeVerdicts(7200.0, {"n1": "h1"}), time.time_ns()
    assert verdicts.evaluate("n1").fitness is Fitness.UNKNOWN
    audited(verdicts, *run_of("h1"), at_ns=now_ns)
    assert verdicts.evaluate("n1").fitness is Fitness.FIT
    take_repair(verdicts, RepairState.DRAINING)
    assert verdicts.evaluate("n1").reasons == ("drained: 2 ECC errors",)
    take_repair(verdicts, RepairState.ENDED)
    assert verdicts.evaluate("n1").fitness is Fitness.FIT
    take_repair(verdicts, RepairState.OPEN)
    take_repair(verdicts, None)
    assert verdicts.evaluate("n1").fitness is Fitness.FIT
    audited(verdicts, *run_of("h1", "r2", ["node.ecc"]), at_ns=now_ns + 1)
    assert verdicts.evaluate("n1").fitness is Fitness.UNFIT
    verdicts.forget(now_ns + 7_300_000_000_000)
    assert verdicts.evaluate("n1").fitness is Fitness.UNKNOWN


def write_certificate(folder: Path, name: str) -> None:
    """Write a new certificate of localhost to the folder."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
         "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    with embedded_log(tmp_path, 1) as bootstrap:
        yield bootstrap


class Webhook:
    """The command as a process."""

    def __init__(self, folder: Path, log: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fabrictime", "audit", "webhook", "--log", log, "--listen", "127.0.0.1:0",
             "--certificate", folder / "tls.crt", "--key", folder / "tls.key"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("admission webhook at https://127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])

    def send(self, method: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=self.folder / "tls.crt")
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)
        try:
            connection.request(method, "/", body, headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def ask(self, node: str) -> Any:
        """Return the answer about a pod that requires a fit node."""
        root = {
            "metadata": {"labels": {PREFLIGHT: "required"}},
            "spec": {"containers": [], "nodeName": node},
        }
        review = {"request": {"uid": "7", "operation": "CREATE", "object": root}}
        status, reply = self.send("POST", json.dumps(review).encode())
        assert status == 200
        return reply["response"]


def test_the_command_answers_from_the_log(tmp_path: Path, log: str, wait_for: Callable[..., Any]) -> None:
    publisher = Publisher(log)
    for record in [*run_of("n1"), *run_of("n2", failed=["node.ecc"])]:
        publisher.publish(AUDIT, record["run"], record)
    publisher.flush(10)
    write_certificate(tmp_path, "first")
    webhook = Webhook(tmp_path, log)
    try:
        wait_for(lambda: webhook.send("GET")[1] == {"fault": ""})
        assert webhook.ask("n1") == {"uid": "7", "allowed": True}
        refused = webhook.ask("n2")
        assert not refused["allowed"]
        assert refused["status"]["message"].startswith("n2: unfit: node.ecc: ")
        repair = make(Repair, repair_id="d1", node="n1", state=RepairState.OPEN, reason="by hand")
        publisher.publish(REPAIRS, "d1", repair)
        publisher.flush(10)
        wait_for(lambda: not webhook.ask("n1")["allowed"])
        # what is no review is refused, and stops nothing
        for body in (b"", b"{", b"[" * 100_000, b'{"request": 7}'):
            assert webhook.send("POST", body)[0] == 400
        assert webhook.send("POST", **{"Content-Length": str(MAX_BODY + 1)})[0] == 400
        with socket.create_connection(("127.0.0.1", webhook.port)) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no handshake
            assert not webhook.ask("n2")["allowed"]
        webhook.process.send_signal(signal.SIGTERM)
        assert webhook.process.wait(30) == 0
    finally:
        webhook.process.kill()
        webhook.process.wait()
        assert webhook.process.stdout is not None
        webhook.process.stdout.close()


def test_a_renewed_certificate_is_served(tmp_path: Path) -> None:
    import threading

    from fabrictime.audit.webhook_server import Server

    write_certificate(tmp_path, "first")
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    with Server(("127.0.0.1", 0), NodeVerdicts(60.0, {}), *files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            first = ssl.get_server_certificate(server.server_address[:2])
            write_certificate(tmp_path, "second")
            server.read_certificate()
            assert ssl.get_server_certificate(server.server_address[:2]) != first
            files[0].write_text("no certificate")
            with pytest.raises(InputError, match="certificate "):
                server.read_certificate()
            assert ssl.get_server_certificate(server.server_address[:2]) != first
        finally:
            server.shutdown()
    write_certificate(tmp_path, "third")
    with pytest.raises(InputError, match="--listen "):
        Server(("203.0.113.1", 1), NodeVerdicts(60.0, {}), *files)
