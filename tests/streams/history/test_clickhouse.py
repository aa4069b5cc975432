"""The history writer: one token per block, and which failures are worth a retry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from schemas import tables
from streams.history.clickhouse import Refused, TableSetup, Unavailable, Writer
from streams.runtime.history_settings import HistorySinkSettings

ROWS = pa.table({"nic": ["h1/eth0", "h2/eth0"]})


class Client:
    """A ClickHouse client that fails with the given errors, one per insert."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.inserts: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.sizes: list[int] = []
        self.max_bytes = 1 << 30
        self.opened = self.closed = 0

    def command(self, statement: str) -> None:
        self.commands.append(statement)

    def query(self, statement: str) -> SimpleNamespace:
        return SimpleNamespace(result_rows=[])

    def raw_insert(self, table: str, **given: Any) -> None:
        self.sizes.append(len(given["insert_block"]))
        if self.errors:
            raise self.errors.pop(0)
        if self.sizes[-1] > self.max_bytes:
            raise DatabaseError("HTTP driver received HTTP status 413, server response: <html>nginx")
        self.inserts.append({"table": table, **given})

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    def get_client(**given: Any) -> Client:
        made.opened += 1
        return made

    monkeypatch.setattr(clickhouse_connect, "get_client", get_client)
    return made


@pytest.fixture
def writer() -> Writer:
    return Writer(HistorySinkSettings(url="http://127.0.0.1:1"))


def failure(code: int) -> DatabaseError:
    error = DatabaseError("bad\nblock")
    error.code = code
    return error


def test_a_block_is_inserted_once_with_its_token_into_tables_that_exist(
    client: Client, writer: Writer
) -> None:
    writer.insert(tables.DELAYS, ROWS, "fabric.delays/0/17")
    [insert] = client.inserts
    assert insert["table"] == f"{tables.DATABASE}.{tables.DELAYS}"
    assert insert["settings"]["insert_deduplication_token"] == "fabric.delays/0/17"
    assert pa.ipc.open_stream(insert["insert_block"]).read_all() == ROWS
    assert len(client.commands) >= len(tables.TABLES)
    writer.insert(tables.DELAYS, ROWS, "fabric.delays/0/19")
    assert client.opened == 1


def test_writers_of_a_process_create_the_tables_once_and_again_after_a_failure(client: Client) -> None:
    settings = HistorySinkSettings(url="http://127.0.0.1:1")
    setup = TableSetup(settings)
    first, second = Writer(settings, setup), Writer(settings, setup)
    first.insert(tables.DELAYS, ROWS, "a")
    created = len(client.commands)
    second.insert(tables.DELAYS, ROWS, "b")
    assert len(client.commands) == created
    client.errors = [failure(60)]  # a server that returned without its tables
    with pytest.raises(Unavailable):
        first.insert(tables.DELAYS, ROWS, "c")
    first.insert(tables.DELAYS, ROWS, "c")
    assert len(client.commands) == 2 * created


def test_a_block_that_clickhouse_never_accepts_is_refused(client: Client, writer: Writer) -> None:
    client.errors = [failure(53)]
    with pytest.raises(Refused, match="bad block"):
        writer.insert(tables.DELAYS, ROWS, "t")
    assert client.closed == 0


def test_a_block_that_a_proxy_refuses_for_its_size_is_halved_until_it_passes(
    client: Client, writer: Writer
) -> None:
    many = pa.table({"nic": [f"h{number:06}/eth0" for number in range(10_000)]})
    client.max_bytes = 50_000
    writer.insert(tables.DELAYS, many, "t")
    stored = [pa.ipc.open_stream(insert["insert_block"]).read_all() for insert in client.inserts]
    assert pa.concat_tables(stored).combine_chunks() == many.combine_chunks()
    tokens = [insert["settings"]["insert_deduplication_token"] for insert in client.inserts]
    assert len(set(tokens)) == len(tokens)
    tries = len(client.sizes)
    writer.insert(tables.DELAYS, many, "u")
    assert len(client.sizes) - tries == len(stored), "the limit is known: no block is refused again"
    assert client.closed == 0


def test_a_row_that_is_too_large_is_refused_and_the_remedy_is_named(client: Client, writer: Writer) -> None:
    client.max_bytes = 10
    with pytest.raises(Refused, match="client_max_body_size"):
        writer.insert(tables.DELAYS, ROWS, "t")


def test_a_body_that_ended_early_is_sent_again_before_it_is_refused(client: Client, writer: Writer) -> None:
    client.errors = [failure(33) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(Unavailable):
            writer.insert(tables.DELAYS, ROWS, "t")
    writer.insert(tables.DELAYS, ROWS, "t")
    assert len(client.inserts) == 1
    client.errors = [failure(33) for _ in range(4)]
    for expected in (Unavailable, Unavailable, Unavailable, Refused):
        with pytest.raises(expected):
            writer.insert(tables.DELAYS, ROWS, "u")


@pytest.mark.parametrize("error", [failure(241), OperationalError("gone"), OSError("refused")])
def test_any_other_failure_is_retried_on_a_new_connection(
    client: Client, writer: Writer, error: Exception
) -> None:
    client.errors = [error]
    with pytest.raises(Unavailable):
        writer.insert(tables.DELAYS, ROWS, "t")
    assert client.closed == 1
    writer.insert(tables.DELAYS, ROWS, "t")
    assert (client.opened, len(client.inserts)) == (2, 1)
