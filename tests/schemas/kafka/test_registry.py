"""The Confluent registry's client against a server that speaks its two endpoints for real."""

from __future__ import annotations

import json
import socket
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from schemas import codec
from schemas.kafka.registry import ConfluentRegistry, RegistryMissing, RegistryUnavailable


def schema_registry_client():
    try:
        import schemas.kafka.registry

        schemas.kafka.registry._library()
    except RegistryMissing as missing:
        pytest.skip(str(missing))


class Server(ThreadingHTTPServer):
    """Ids by schema text; `calls` lists what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.schemas = {}
        self.subjects = {}
        self.calls = []
        self.fail = None
        self.authorization = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        self.server.calls.append(("POST", path))
        self.server.authorization = self.headers.get("Authorization")
        if self.server.fail:
            return self._answer(self.server.fail, {"error_code": self.server.fail, "message": "no"})
        subject = unquote(path.removeprefix("/subjects/").removesuffix("/versions"))
        number = next((n for n, text in self.server.schemas.items() if text == body["schema"]), None)
        if number is None:
            number = len(self.server.schemas) + 1
            self.server.schemas[number] = body["schema"]
        self.server.subjects[subject] = number
        return self._answer(200, {"id": number})

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.calls.append(("GET", path))
        if self.server.fail:
            return self._answer(self.server.fail, {"error_code": self.server.fail, "message": "no"})
        text = self.server.schemas.get(int(path.rpartition("/")[2]))
        if text is None:
            return self._answer(404, {"error_code": 40403, "message": "Schema not found"})
        return self._answer(200, {"schema": text})

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    schema_registry_client()
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


def test_records_travel_with_registered_ids(server, honest):
    writer, reader = ConfluentRegistry(server.url), ConfluentRegistry(server.url)
    for name in ("Nic", "ClockOffsets", "Nic", "Nic"):
        message = codec.encode(name, honest(name), writer)
        assert message[0] == 0
        assert codec.decode(message, name, reader) == honest(name)
        assert codec.body_start(message, name, reader) == 5
    assert set(server.subjects) == {"fabrictime.Nic", "fabrictime.ClockOffsets"}
    assert json.loads(server.schemas[1]) == codec.raw_schema("Nic")


def test_each_id_is_asked_for_once(server, honest):
    registry = ConfluentRegistry(server.url)
    numbers = {registry.id_of("Nic", codec.raw_schema("Nic")) for _ in range(5)}
    assert numbers == {1}
    assert [registry.schema_of(1) for _ in range(5)] == [codec.raw_schema("Nic")] * 5
    assert sum(call[0] == "POST" for call in server.calls) == 1
    assert sum(call[0] == "GET" for call in server.calls) <= 1


def test_an_unknown_id_is_a_bad_record_and_stays_one_question(server):
    registry = ConfluentRegistry(server.url)
    with pytest.raises(KeyError, match="schema 77"):
        registry.schema_of(77)
    with pytest.raises(codec.BadRecord, match="no schema 77") as found:
        codec.decode(b"\x00\x00\x00\x00\x4d", "Nic", registry)
    assert found.value.reason == "UNKNOWN_SCHEMA"


@pytest.mark.parametrize("text", ['"string"', "not json", "[]"])
def test_a_schema_that_is_no_avro_record_is_unknown(server, text):
    server.schemas[9] = text
    with pytest.raises(KeyError, match="schema 9"):
        ConfluentRegistry(server.url).schema_of(9)


def test_a_registry_that_fails_is_unavailable_and_not_remembered(server):
    registry = ConfluentRegistry(server.url)
    server.schemas[1] = json.dumps(codec.raw_schema("Nic"))
    server.fail = 500
    with pytest.raises(RegistryUnavailable, match=server.url):
        registry.schema_of(1)
    with pytest.raises(RegistryUnavailable):
        registry.id_of("Nic", codec.raw_schema("Nic"))
    server.fail = None
    assert registry.schema_of(1)["name"] == "Nic"
    assert registry.id_of("Nic", codec.raw_schema("Nic")) == 1


def test_a_schema_that_the_registry_refuses(server):
    server.fail = 409
    with pytest.raises(ValueError, match=r"schema fabrictime\.Nic: the registry at .* refuses it"):
        ConfluentRegistry(server.url).id_of("Nic", codec.raw_schema("Nic"))


def test_nobody_there(server):
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{occupied.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable, match="schema registry http://127"):
            ConfluentRegistry(url, timeout_s=1).schema_of(1)


def test_passwords_are_used_and_never_shown(server):
    host = server.url.removeprefix("http://")
    registry = ConfluentRegistry(server.url, ("ann", "s3:cret"))
    registry.id_of("Nic", codec.raw_schema("Nic"))
    assert server.authorization == "Basic " + b64encode(b"ann:s3:cret").decode()
    server.fail = 500
    with pytest.raises(RegistryUnavailable) as found:
        registry.schema_of(5)
    assert "s3:cret" not in str(found.value)
    assert host in str(found.value)


@pytest.mark.parametrize("url", ["", "registry:8081", "ftp://x", "http://", "http://ann:s3cret@host:1"])
def test_urls_that_are_none(url):
    with pytest.raises(ValueError, match="schema_registry_url") as found:
        ConfluentRegistry(url)
    assert "s3cret" not in str(found.value)


def test_without_the_extra_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(RegistryMissing, match=r"pip install 'fabrictime\[registry\]'") as found:
        ConfluentRegistry("http://127.0.0.1:1")
    assert "\n" not in str(found.value)
