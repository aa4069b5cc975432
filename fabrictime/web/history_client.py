"""A thread-safe ClickHouse client that sorts failures into four kinds.

It works with the embedded history and with an external ClickHouse. SQL takes `{name:Type}` parameters. A
result is a list of columns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)
for _library in ("clickhouse_connect.driver._backend.http_sync", "urllib3.connectionpool"):
    # They warn at each query that a server does not answer; `ClickHouse` logs that once.
    logging.getLogger(_library).setLevel(logging.ERROR)

Columns = Sequence[Sequence[Any]]


class History(Protocol):
    """A database that returns query results column by column."""

    database: str

    def columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Columns:
        """Return the columns of a query's result. Raises HistoryError."""
        ...


class HistoryError(Exception):
    """The history did not return a result. The message is one line for the user of the page."""


class HistoryDown(HistoryError):
    """The history's URL does not answer within the time limit."""


class HistoryRefused(HistoryError):
    """The history refuses the user or the token."""


class HistoryEmpty(HistoryError):
    """The history has no tables yet."""


class QueryFailed(HistoryError):
    """The history could not run the query."""


_NO_TABLES = {60, 81}  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_REFUSED = {192, 193, 194, 497, 516}  # unknown user, wrong or missing password, access denied


class ClickHouse:
    """History through clickhouse-connect. It connects at the first query and reconnects after a failure.

    It logs a line when the history begins to fail, and a line when the history answers again.
    """

    def __init__(self, connect: Callable[[], Any], url: str, database: str) -> None:
        self.database = database
        self._connect = connect
        self._url = url
        self._client: Any = None
        self._lock = threading.Lock()
        self._failure = ""
        """The failure that was logged last; empty while the history answers."""

    def columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Columns:
        """Return the columns of a query's result. Raises HistoryError. Thread-safe."""
        try:
            client = self._connected()
            result = client.query(sql, parameters=dict(parameters or {}), column_oriented=True)
        except Exception as error:
            self.close()
            failure = sort_error(error, self._url)
            self._log_failure(str(failure) if isinstance(failure, HistoryDown | HistoryRefused) else "")
            raise failure from error
        self._log_failure("")
        return result.result_columns or [[] for _ in result.column_names]

    def close(self) -> None:
        """Close the connection. The next query opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _log_failure(self, failure: str) -> None:
        """Log a line if the failure is new, or if an empty `failure` ends the previous one."""
        with self._lock:
            previous, self._failure = self._failure, failure
        if failure and failure != previous:
            log.warning("%s", failure)
        elif previous and not failure:
            log.info("history at %s answers again", self._url)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client


def connect_http(
    url: str, user: str, token_file: Path | None, database: str, timeout_s: float, threads: int
) -> ClickHouse:
    """Return a client for the history at a ClickHouse HTTP URL. The client's first query connects and reads
    the token.
    """

    def connect() -> Any:
        import clickhouse_connect
        from clickhouse_connect.driver.httputil import get_pool_manager

        return clickhouse_connect.get_client(
            dsn=url,
            username=user,
            password=_token(token_file),
            connect_timeout=min(2.0, timeout_s),
            send_receive_timeout=timeout_s,
            query_limit=0,
            query_retries=0,
            autogenerate_session_id=False,
            compress=False,
            pool_mgr=get_pool_manager(maxsize=threads, num_pools=1),
        )

    return ClickHouse(connect, url.rstrip("/"), database)


def _token(path: Path | None) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() if path is not None else ""
    except OSError as error:
        raise HistoryRefused(f"history's token file {path} cannot be read: {error.strerror}") from error


def sort_error(error: Exception, url: str) -> HistoryError:
    """Return the kind of HistoryError for an exception of the client library, with a one-line text."""
    if isinstance(error, HistoryError):
        return error
    text = " ".join(str(error).split())
    code = _code(error, text)
    if code in _NO_TABLES:
        return HistoryEmpty(f"history at {url} has no tables yet")
    if code in _REFUSED or ("HTTPDriver" in text and (" 401 " in text or " 403 " in text)):
        return HistoryRefused(f"history at {url} refuses the user or token")
    if code is None and _unreachable(error):
        return HistoryDown(f"history at {url} does not answer")
    return QueryFailed(f"history at {url}: {text[:300]}")


def _code(error: Exception, text: str) -> int | None:
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code
    _, marker, rest = text.partition("Code: ")
    digits = rest.split(".", 1)[0] if marker else ""
    return int(digits) if digits.isdigit() else None


def _unreachable(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) or type(error).__module__.startswith("urllib3"):
            return True
        if type(error).__name__ == "OperationalError":
            return True
        error = error.__cause__ or error.__context__
    return False
