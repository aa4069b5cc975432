"""The HTTP side with an engine that records its calls: users, parameters, limits and errors."""

import asyncio
import base64
import gzip
import io
import threading

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fabrictime.history import http
from fabrictime.history.engine import READER, WRITER, Answer, EngineError
from fabrictime.history.http import Endpoint
from fabrictime.history.settings import HistorySettings


class Engine:
    """An engine that answers every call alike."""

    def __init__(self):
        self.calls = []
        self.answer = Answer(b"1\n", written_rows=3)
        self.error = None
        self.called, self.free = threading.Event(), threading.Event()
        self.free.set()

    def run(self, call):
        self.calls.append(call)
        self.called.set()
        self.free.wait(10)
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def talk(engine, tmp_path):
    """Run a conversation with an endpoint: an async function of a client."""

    def run(conversation, **settings):
        async def main():
            made = HistorySettings(directory=tmp_path, **settings)
            endpoint = Endpoint(engine, made, "write", "read")
            server = TestServer(endpoint.application())
            await server.start_server(auto_decompress=False)
            async with TestClient(server) as client:
                found = await conversation(client)
            endpoint.close()
            return found

        return asyncio.run(main())

    return run


READ = {"X-ClickHouse-User": "reader", "X-ClickHouse-Key": "read"}
WRITE = {"X-ClickHouse-User": "fabrictime", "X-ClickHouse-Key": "write"}


@pytest.mark.parametrize(
    ("headers", "role"),
    [
        (READ, READER),
        (WRITE, WRITER),
        ({"Authorization": "Bearer read"}, READER),
        ({"Authorization": "Basic " + base64.b64encode(b"fabrictime:write").decode()}, WRITER),
        ({"X-ClickHouse-User": "default", "X-ClickHouse-Key": "write"}, WRITER),
    ],
)
def test_a_token_gives_its_role(talk, engine, headers, role):
    async def conversation(client):
        return (await client.post("/", data="SELECT 1", headers=headers)).status

    assert talk(conversation) == 200
    assert [call.role for call in engine.calls] == [role]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "194"),
        ({**READ, "X-ClickHouse-User": "fabrictime"}, "516"),
        ({"Authorization": "Basic x"}, "516"),
    ],
)
def test_without_the_right_token_the_engine_is_not_called(talk, engine, headers, code):
    async def conversation(client):
        return (await client.post("/", data="SELECT 1", headers=headers)).headers

    assert talk(conversation)["X-ClickHouse-Exception-Code"] == code
    assert not engine.calls


def test_parameters_are_settings_unless_they_are_the_endpoints_own(talk, engine):
    query = {
        "query": "SELECT {x:Int8}",
        "param_x": "4",
        "max_threads": "1",
        "database": "d",
        "session_id": "s",
        "query_id": "q",
        "default_format": "JSON",
    }

    async def conversation(client):
        return (await client.get("/", params=query, headers=READ)).headers

    headers = talk(conversation)
    [call] = engine.calls
    assert (call.params, call.settings) == ({"x": "4"}, {"max_threads": "1"})
    assert (call.database, call.session, call.format, call.read_only) == ("d", "s", "JSON", True)
    assert (headers["X-ClickHouse-Query-Id"], headers["X-ClickHouse-Format"]) == ("q", "JSON")


def test_a_body_is_unpacked_and_bounded(talk, engine):
    async def conversation(client):
        packed = gzip.compress(b"SELECT 1")
        encoded = {**WRITE, "Content-Encoding": "gzip"}
        good = await client.post("/", data=packed, headers=encoded)
        broken = await client.post("/", data=packed[:-9], headers=encoded)
        large = await client.post("/", data=io.BytesIO(bytes(2 << 20)), headers=WRITE)
        return good.status, broken.status, large.status

    assert talk(conversation, request_limit_mib=1) == (200, 400, 413)
    assert [call.statement.text for call in engine.calls] == ["SELECT 1"]


@pytest.mark.parametrize(("code", "status"), [(60, 404), (497, 403), (159, 408), (9999, 500)])
def test_an_error_of_the_engine_has_its_status(talk, engine, code, status):
    engine.error = EngineError(code, "DB::Exception: no")

    async def conversation(client):
        answer = await client.post("/", data="SELECT 1", headers=READ)
        return answer.status, await answer.text()

    got, text = talk(conversation)
    assert got == status
    assert text.startswith(f"Code: {code}. DB::Exception: no")


def test_a_reader_writes_nothing_and_too_many_queries_are_refused(talk, engine, monkeypatch):
    monkeypatch.setattr(http, "MAX_IN_FLIGHT", 1)
    engine.free.clear()

    async def conversation(client):
        denied = await client.post("/", data="DROP TABLE x", headers=READ)
        first = asyncio.ensure_future(client.post("/", data="SELECT 1", headers=READ))
        await asyncio.to_thread(engine.called.wait, 10)
        busy = await client.post("/", data="SELECT 1", headers=READ)
        engine.free.set()
        return denied.status, busy.status, (await first).status

    assert talk(conversation) == (403, 503, 200)
    assert len(engine.calls) == 1


def test_the_format_of_a_result_is_the_statements_own():
    assert http._format_of("SELECT 1 FORMAT CSV", "JSON") == "CSV"
    assert http._format_of("SELECT 1 AS format", "JSON") == "JSON"
