"""What counts as served: content does, a login page, a refusal and a lost path do not."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fabrictime.bench.operate import _page_attacks


class Status(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "is_served"), [(200, True), (503, True), (422, True), (303, False), (401, False), (403, False)]
)
def test_content_is_served(status: int, is_served: bool) -> None:
    with HTTPServer(("127.0.0.1", 0), Status) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        page = f"http://127.0.0.1:{server.server_port}"
        assert _page_attacks._is_served(page, "GET", f"/{status}", {}) is is_served
        thread.join(10)
