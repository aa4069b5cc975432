"""A ClickHouse client for the sink: creates tables, inserts blocks, and distinguishes failures.

Each Arrow table is inserted with a deduplication token. Failures raise `Unavailable` (retry) or `Refused`
(the block will never be accepted). Calls block, and only one thread at a time may use an instance.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from schemas import table_statements, tables
from schemas.checks import BadRecord
from schemas.service_notifier import ServiceNotifier
from schemas.topics import Topic
from streams.history.rows import TOPICS
from streams.history.store_status import StoreStatus
from streams.runtime.history_settings import HistorySinkSettings

LOG: Final = logging.getLogger(__name__)

INSERT_SETTINGS: Final[Mapping[str, str]] = {
    "async_insert": "0",
    "insert_deduplicate": "1",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    "optimize_on_insert": "0",
    "max_partitions_per_insert_block": "0",
}
"""Settings that make an insert store the whole block, in base table and rollup, before it is acknowledged."""

DATA_ERRORS: Final = frozenset({6, 26, 27, 32, 33, 41, 43, 53, 69, 70, 72, 117, 131, 349, 396, 691})
"""ClickHouse error codes caused by the block itself."""
CUT_BODY: Final = 33
"""The code of a body that ends early: a proxy may have cut it, and the block is good later."""
CUT_RETRIES: Final = 3
TOO_LARGE: Final = re.compile(r"\b(status|code) 413\b|(Entity|Payload|Content) Too Large", re.IGNORECASE)
"""Answers of a server or proxy to a body above its limit."""


class Unavailable(OSError):
    """Raised if ClickHouse cannot accept a block now but may accept it later."""


class Refused(BadRecord):
    """Raised if ClickHouse will never accept a block, because of its content."""


class TableSetup:
    """Creates the tables, once for all writers of a process: before the first insert, and after a failure.

    Only statements that change something are sent: sixty statements from every writer took half a minute.
    """

    def __init__(self, settings: HistorySinkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._done = False

    def ensure(self, client: Any) -> None:
        """Create missing tables and columns, and set the retention. Concurrent callers wait for the first."""
        with self._lock:
            if self._done:
                return
            created = client.query(table_statements.CREATED.format(database=tables.DATABASE)).result_rows
            for statement in table_statements.missing(created, self._settings.retention.by_table()):
                client.command(statement)
            self._done = True
            LOG.info("history at %s: tables are there", self._settings.url)

    def forget(self) -> None:
        """Set up the tables again at the next connection: a failed server may restart without its data."""
        with self._lock:
            self._done = False


class Writer:
    """One HTTP connection to ClickHouse, opened at first use and again after a failure.

    `setup` is shared by the writers of a process; without it, this writer creates the tables itself.
    """

    def __init__(self, settings: HistorySinkSettings, setup: TableSetup | None = None) -> None:
        self._settings = settings
        self._setup = setup or TableSetup(settings)
        self._client: Any = None
        self._max_bytes: int | None = None
        """Largest body that may pass, once one was refused for its size."""
        self._cut: tuple[str, int] = ("", 0)
        """Token of the last block whose body ended early, and how often."""

    def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert `rows`; split a block that is too large in half. Raises Unavailable or Refused."""
        block = _block_of(rows)
        is_small = self._max_bytes is None or len(block) <= self._max_bytes or rows.num_rows == 1
        if is_small and self._insert_block(table, rows, block, token):
            return
        middle = rows.num_rows // 2
        self.insert(table, rows.slice(0, middle), f"{token}/0")
        self.insert(table, rows.slice(middle), f"{token}/1")

    def _insert_block(self, table: str, rows: pa.Table, block: bytes, token: str) -> bool:
        """Insert a block; return False if the server finds it too large. Raises Unavailable or Refused."""
        from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

        try:
            self._connected().raw_insert(
                f"{tables.DATABASE}.{table}",
                column_names=rows.schema.names,
                insert_block=block,
                fmt="ArrowStream",
                settings={**INSERT_SETTINGS, "insert_deduplication_token": token},
            )
        except DatabaseError as error:
            code = getattr(error, "code", None)
            if code is None and TOO_LARGE.search(str(error)):
                return self._note_too_large(table, rows, block, error)
            if code in DATA_ERRORS and not self._may_be_cut(code, token):
                raise Refused("OTHER", _line(error)) from error
            self._fail()
            raise Unavailable(_line(error)) from error
        except (ClickHouseError, OSError, ValueError) as error:
            self._fail()
            raise Unavailable(_line(error)) from error
        return True

    def _note_too_large(self, table: str, rows: pa.Table, block: bytes, error: Exception) -> bool:
        """Store the size of a block that is too large; return False. Raises Refused for a single row."""
        if rows.num_rows <= 1:
            hint = "raise the proxy's limit of bodies (nginx: client_max_body_size)"
            raise Refused("OTHER", f"{table}: a row of {len(block)} bytes is too large: {hint}") from error
        if self._max_bytes is None or len(block) <= self._max_bytes:
            self._max_bytes = len(block) - 1
            LOG.warning(
                "history at %s: a block of %d bytes is above its limit (413); smaller ones follow",
                self._settings.url,
                len(block),
            )
        return False

    def _may_be_cut(self, code: int, token: str) -> bool:
        """Return whether a refused body may have been truncated in transit, at most `CUT_RETRIES` times."""
        if code != CUT_BODY:
            return False
        self._cut = (token, self._cut[1] + 1 if self._cut[0] == token else 1)
        return self._cut[1] <= CUT_RETRIES

    def close(self) -> None:
        """Close the connection; the next insert opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _fail(self) -> None:
        self._setup.forget()
        self.close()

    def _connected(self) -> Any:
        if self._client is None:
            import clickhouse_connect

            address = urlsplit(self._settings.url)
            near = address.hostname in ("127.0.0.1", "::1", "localhost")
            password = ""
            if self._settings.password_file is not None:
                password = self._settings.password_file.read_text(encoding="utf-8").strip()
            client = clickhouse_connect.get_client(
                host=address.hostname or "127.0.0.1",
                port=address.port or (8443 if address.scheme == "https" else 8123),
                interface=address.scheme,
                username=self._settings.user,
                password=password,
                compress=False if near else "lz4",
                autogenerate_session_id=False,
                connect_timeout=5,
                send_receive_timeout=self._settings.insert_timeout_s,
                query_retries=0,
                client_name="fabrictime-sink",
            )
            self._setup.ensure(client)
            self._client = client
        return self._client


class ReportingStore:
    """Inserts rows of one topic, and reports to the service manager whether the inserts succeed."""

    def __init__(self, topic: Topic, writer: Writer, status: StoreStatus) -> None:
        self._topic, self._writer, self._status = topic.name, writer, status

    def insert(self, table: str, rows: Any, token: str) -> None:
        """Insert rows, and return once they are stored. Raises Unavailable or Refused."""
        try:
            self._writer.insert(table, rows, token)
        except Unavailable as error:
            self._status.failed(self._topic, str(error))
            raise
        except Refused:
            self._status.forget(self._topic)  # it answers again
            raise
        self._status.stored(self._topic, rows.num_rows)

    def forget(self) -> None:
        """Clear the topic's failure, because another sink repeats the failed insert."""
        self._status.forget(self._topic)


def stores_of(settings: HistorySinkSettings) -> Iterator[tuple[Topic, ReportingStore]]:
    """Yield each topic that the history stores, with the store that inserts its rows."""
    status = StoreStatus(settings.url, ServiceNotifier().notify)
    setup = TableSetup(settings)
    for topic in TOPICS:
        yield topic, ReportingStore(topic, Writer(settings, setup), status)


def _block_of(rows: pa.Table) -> bytes:
    """Encode rows in Arrow's stream format, as one batch: the body of an insert request."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=max(1, rows.num_rows))
    block: bytes = sink.getvalue().to_pybytes()
    return block


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
