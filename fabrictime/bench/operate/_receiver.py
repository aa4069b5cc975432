"""An HTTP server that receives notifications, for benches and tests, and can refuse or go down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the errors of connections, since the bench kills their clients."""


class Received(NamedTuple):
    """A request that the server accepted: its arrival, path and JSON."""

    at_s: float
    path: str
    content: Any


class HttpReceiver:
    """Accepts JSON on a port of loopback and answers with `status`; answers above 299 count as refused.

    `on_request` is called with each request before the answer.
    """

    def __init__(self, on_request: Callable[[], None] | None = None) -> None:
        self.status = 200
        self.received: list[Received] = []
        self.refused = 0
        self.authorizations: list[str] = []
        self._on_request = on_request
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_down(self) -> bool:
        """Whether the server does not listen."""
        return self._server is None

    def up(self) -> None:
        """Listen, on the same port as before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                receiver.authorizations.append(self.headers.get("Authorization") or "")
                status = receiver._take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if receiver._server is None:
                    self.send_header("Connection", "close")
                    self.close_connection = True
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = _Server(("127.0.0.1", self._port), Handler)
        self._port = server.server_port
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Stop listening; the next requests on open connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _take(self, path: str, body: bytes) -> int:
        at_s = time.monotonic()  # before a kill at this request
        with self._lock:
            status = self.status if self._server is not None else 503
            if self._on_request is not None:
                self._on_request()
            if status >= 300:
                self.refused += 1
            else:
                self.received.append(Received(at_s, path, json.loads(body)))
            return status
