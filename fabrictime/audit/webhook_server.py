"""Serves the admission webhook: reads audit results and repairs from the log, and answers over HTTPS.

The certificate is read again when its file changes. Without the log, every pod is admitted with a warning.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from actuators.nodes.fitness import AuditHistory, Fitness, HostFitness
from fabrictime.audit import webhook
from fabrictime.audit.node_log import MARGIN_S
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.records import Repair, RepairState
from schemas.stop_request import StopRequest
from schemas.topics import AUDIT, REPAIRS, Topic

MAX_BODY: Final = 4 * 1024 * 1024
"""Largest body of a request; an object of Kubernetes has at most 1.5 MB."""
REQUEST_S: Final = 30.0
"""Time that a client may be silent; API servers keep their connections."""
POLL_S: Final = 0.5
RETRY_S: Final = 2.0
FORGET_S: Final = 60.0
DRAINED: Final = frozenset({RepairState.DRAINING, RepairState.OPEN})

log = logging.getLogger(__name__)


class NodeVerdicts:
    """The fitness of nodes from the newest audit results and the active drains. Thread-safe."""

    def __init__(self, max_age_s: float, host_by_node: Mapping[str, str]) -> None:
        self.fault = "the log has not been read yet"
        self._max_age_ns, self._host_by_node = round(max_age_s * 1e9), host_by_node
        self._audits = AuditHistory()
        self._repairs: dict[str, Repair] = {}
        self._lock = threading.Lock()

    def take(self, message: Message, record: Any) -> None:
        """Store an audit result or a repair."""
        with self._lock:
            if message.topic == REPAIRS.name:
                self._repairs.pop(message.key, None)
                if record is not None and record["state"] in DRAINED:
                    self._repairs[message.key] = record
            elif record is not None:
                self._audits.take(record, message.append_ns)

    def forget(self, now_ns: int) -> None:
        """Drop audit results that are too old to count."""
        with self._lock:
            self._audits.forget(now_ns - self._max_age_ns)

    def evaluate(self, node: str) -> HostFitness:
        """Return the present fitness of a node."""
        host = self._host_by_node.get(node, node)
        with self._lock:
            for repair in self._repairs.values():
                if node == repair["node"]:
                    return HostFitness(host, Fitness.UNFIT, (f"drained: {repair['reason']}",))
            return self._audits.fitness(host, time.time_ns() - self._max_age_ns)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection: POST of an admission review, GET of the kubelet's probes."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S

    def __init__(self, verdicts: NodeVerdicts, *given: Any) -> None:
        self._verdicts = verdicts
        super().__init__(*given)

    def do_GET(self) -> None:
        """Answer a probe of the kubelet with status 200, even if the fitness of nodes is unknown."""
        self._send(200, {"fault": self._verdicts.fault})

    def do_POST(self) -> None:
        """Answer an admission review."""
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= MAX_BODY:
                raise ValueError(f"Content-Length {size}: expected at most {MAX_BODY}")
            review = json.loads(self.rfile.read(size))
            reply = webhook.answer(review, self._verdicts.evaluate, self._verdicts.fault)
        except (ValueError, RecursionError) as error:
            self.close_connection = True
            self._send(400, {"error": str(error)[:300]})
            return
        response = reply["response"]
        if not response["allowed"]:
            log.info("refused %s: %s", response["uid"], response["status"]["message"])
        self._send(200, reply)

    def log_message(self, format: str, *given: Any) -> None:
        """Suppress the line that the base class logs for each request."""

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """An HTTPS server. TLS handshakes take place in the threads of their connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], verdicts: NodeVerdicts, certificate: Path, key: Path
    ) -> None:
        """Listen on `address`. Raises ValueError for an unusable address or certificate."""
        self._files, self._read = (certificate, key), (0, 0)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.read_certificate()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, partial(Handler, verdicts))
        except OSError as error:
            raise InputError(f"--listen {address[0]}:{address[1]}: {error.strerror or error}") from error

    def read_certificate(self) -> None:
        """Read the certificate if its files have changed. Raises ValueError."""
        try:
            changed = self._files[0].stat().st_mtime_ns, self._files[1].stat().st_mtime_ns
            if changed != self._read:
                self._context.load_cert_chain(*self._files, password=lambda: b"")
                self._read = changed
        except OSError as error:
            raise InputError(f"certificate {self._files[0]}: {error.strerror or error}") from error

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its TLS handshake takes place at the first read."""
        connection, address = super().get_request()
        connection.settimeout(REQUEST_S)
        wrapped = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection in one line, such as a handshake with another certificate authority."""
        log.warning("connection of %s failed", client_address[0], exc_info=log.isEnabledFor(logging.DEBUG))


def follow(
    verdicts: NodeVerdicts, cluster: KafkaSettings, server: Server, max_age_s: float, stopping: StopRequest
) -> None:
    """Read the log until a stop is requested, and begin again after a failure."""
    while not stopping.is_set():
        try:
            _follow(verdicts, cluster, server, max_age_s, stopping)
        except ValueError as error:  # the log does not answer
            if str(error) != verdicts.fault:
                log.warning("%s", error)
            verdicts.fault = str(error)
            stopping.wait(RETRY_S)


def _follow(
    verdicts: NodeVerdicts, cluster: KafkaSettings, server: Server, max_age_s: float, stopping: StopRequest
) -> None:
    registry = cluster.registry()
    starts: dict[Topic[Any], Start] = {AUDIT: back(max_age_s + MARGIN_S), REPAIRS: BEGINNING}
    forget_s = 0.0
    with TopicReader.open(cluster, starts) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry, _on_reject):
            verdicts.take(message, record)
        verdicts.fault = ""
        while not stopping.is_set():
            for message, record in reader.decoded(reader.poll(POLL_S, at_once=True), registry, _on_reject):
                verdicts.take(message, record)
            if time.monotonic() >= forget_s:
                forget_s = time.monotonic() + FORGET_S
                verdicts.forget(time.time_ns())
                _renew(server)


def _renew(server: Server) -> None:
    try:
        server.read_certificate()
    except ValueError as error:  # the former certificate stays
        log.warning("%s", error)


def _on_reject(message: Message, error: codec.BadRecord) -> None:
    log.warning("%s %d/%d: %s", message.topic, message.partition, message.offset, error)


def serve(
    cluster: KafkaSettings,
    address: tuple[str, int],
    certificate: Path,
    key: Path,
    max_age_s: float,
    host_by_node: Mapping[str, str],
) -> None:
    """Serve the webhook until SIGTERM or SIGINT. Raises ValueError for an unusable address or certificate."""
    stopping = StopRequest()
    stopping.set_on_signals()
    verdicts = NodeVerdicts(max_age_s, host_by_node)
    with Server(address, verdicts, certificate, key) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        print(f"admission webhook at https://{host!s}:{port}", flush=True)
        follow(verdicts, cluster, server, max_age_s, stopping)
        server.shutdown()
