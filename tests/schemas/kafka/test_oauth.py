"""Tokens by client credentials, from a server that counts its requests."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from schemas.kafka.oauth import TokenProvider


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.requests.append((form, self.headers["Authorization"]))
        code, answer = self.server.answers.pop(0)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.answers = [], []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def provider(server):
    return TokenProvider(f"http://127.0.0.1:{server.server_address[1]}/token", "me", "s3:cret", "kafka")


def test_a_token_is_requested_once_while_it_is_valid(server):
    server.answers = [(200, {"access_token": "one", "expires_in": 3600})]
    tokens = provider(server)
    assert [asyncio.run(tokens.token()) for _ in range(2)] == ["one", "one"]
    [(form, authorization)] = server.requests
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert authorization == "Basic " + base64.b64encode(b"me:s3%3Acret").decode()


def test_a_token_without_lifetime_is_requested_each_time(server):
    server.answers = [(200, {"access_token": "one"}), (200, {"access_token": "two"})]
    tokens = provider(server)
    assert [asyncio.run(tokens.token()) for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize("answer", [(401, {"error": "s3:cret"}), (200, {}), (200, ["s3:cret"])])
def test_without_a_token_the_server_is_named_and_no_secret(server, answer):
    server.answers = [answer]
    with pytest.raises(ValueError, match=r"oauth_token_url http://127.* no token") as found:
        asyncio.run(provider(server).token())
    assert "cret" not in str(found.value)
