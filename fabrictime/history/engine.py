"""Runs chdb in this process, with one owner per directory and two roles.

A `Call` (statement, settings, parameters, role) returns bytes in the requested format, or raises
`EngineError` with ClickHouse's code.

Every call has its own connection (0.3 ms), so that its settings end with it; only a session keeps its
connection. All calls block, so the HTTP side runs them in threads. A running chdb does not survive a fork:
the child hangs on its first query. So start the engine in a fresh process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from fabrictime.history.settings import HistorySettings
from fabrictime.history.sql import Statement
from schemas import table_statements, tables

MIB: Final = 1024 * 1024
WRITER: Final = "writer"
READER: Final = "reader"

_SETTING_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_ERROR: Final = re.compile(r"Code: (\d+)\. (DB::[\s\S]*)")
_TRAILER: Final = re.compile(r", Stack trace \(when copying[\s\S]*|\n\s*0\. [\s\S]*")
UNKNOWN_DATABASE: Final = 81
UNKNOWN_SETTING: Final = 115
_CLOSED_SETTINGS: Final = (
    "dialect",
    "format_avro_schema_registry_url",
    "format_schema",
    "format_schema_source",
    "format_template_resultset",
    "format_template_row",
    "input_format_record_errors_file_path",
    "output_format_schema",
    "rename_files_after_processing",
)
"""Settings that read or write a file, open a connection or change the SQL dialect. No query may set them,
however it spells them.
"""
NOT_IMPLEMENTED: Final = 48
SESSION_LOCKED: Final = 373
UNKNOWN_EXCEPTION: Final = 1002


class EngineError(Exception):
    """An error of the engine with ClickHouse's error number as `code`, and ClickHouse's text as message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class DirectoryInUse(Exception):
    """Another process uses the directory; the message names the process."""


@dataclass(frozen=True, slots=True)
class Call:
    """One SQL statement to run. `format` is the result's format if the statement itself does not set one."""

    statement: Statement
    role: str
    format: str = "TabSeparated"
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: its body, and the number of rows and bytes that were read or written."""

    body: bytes
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed_ns: int = 0


class _Session:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.used_s = time.monotonic()


class Engine:
    """A chdb engine on one directory. Use it as a context manager, or call `close`."""

    def __init__(self, settings: HistorySettings) -> None:
        """Lock the directory and start the engine. Raises DirectoryInUse if another process uses it."""
        self._settings = settings
        self._closed = False
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._sessions_lock = threading.Lock()
        directory = settings.directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.chmod(0o700)
        self._lock_file = _take(directory)
        config = _write_config(directory, settings)
        data = directory / "data"
        self._target = f"{data}?config-file={config}"
        from chdb.state.sqlitelike import Connection  # 1.2 s and 260 MB: only where the engine runs

        self._connect = Connection
        try:
            self._anchor = self._open()
            # Drop the view of an older version before any insert, so that it misses no row.
            drop = f"DROP VIEW IF EXISTS {tables.DATABASE}.{tables.ROLLUP_VIEW}"
            database, *rest = table_statements.create_all()
            for statement in (database, drop, *rest):
                self._anchor.query(statement)
        except BaseException:
            self._lock_file.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sessions and the engine, then unlock the directory. May be called twice."""
        if self._closed:
            return
        self._closed = True
        with self._sessions_lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()
        self._anchor.close()
        self._lock_file.close()

    def note_owner(self, text: str) -> None:
        """Write a description of this process into the directory's lock file. Another process that fails to
        lock the directory shows this text.
        """
        self._lock_file.seek(0)
        self._lock_file.truncate()
        self._lock_file.write(text)
        self._lock_file.flush()

    def run(self, call: Call) -> Answer:
        """Run a call and return its result. Raises EngineError if the statement fails."""
        with self._connection(call) as connection:
            try:
                return self._run(connection, call)
            except RuntimeError as error:
                raise _engine_error(error) from error
            except Exception as error:
                if type(error).__name__ != "ChdbError":
                    raise
                raise _engine_error(error) from error

    def _run(self, connection: Any, call: Call) -> Answer:
        names = self._prepare(connection, call)
        statement = call.statement
        try:
            if statement.format is not None:
                return _insert(connection, statement)
            result = connection.query(statement.text, call.format, params=dict(call.params))
            inserting = statement.keyword == "INSERT"
            rows, size = int(result.rows_read()), int(result.bytes_read())
            return Answer(
                result.bytes() or b"",
                read_rows=0 if inserting else rows,
                read_bytes=0 if inserting else size,
                written_rows=rows if inserting else 0,
                written_bytes=size if inserting else 0,
                elapsed_ns=int(result.elapsed() * 1e9),
            )
        finally:
            if call.session is not None and names and statement.keyword != "SET":
                connection.query("SET " + ", ".join(f"{name} = DEFAULT" for name in names))
                if call.role != WRITER or call.read_only:
                    connection.query(self._set_limits())

    def _prepare(self, connection: Any, call: Call) -> list[str]:
        for name in call.settings:
            if not _SETTING_NAME.fullmatch(name) or "dialect" in name:
                raise EngineError(UNKNOWN_SETTING, f"DB::Exception: Setting {name[:100]!r} is not taken here")
        if call.database:
            connection.query(f"USE {_identifier(call.database)}")
        settings = dict(call.settings)
        if call.role != WRITER or call.read_only:
            limits = self._limits()
            settings |= {
                name: _capped(settings[name], limits[name]) for name in limits.keys() & settings.keys()
            }
        if settings:
            pairs = ", ".join(f"{name} = {_literal(value)}" for name, value in settings.items())
            connection.query(f"SET {pairs}")
        return list(settings)

    def _limits(self) -> dict[str, float]:
        """Return the ClickHouse settings that limit a reader's query, by name."""
        return {
            "max_execution_time": self._settings.query_limit_s,
            "max_memory_usage": self._settings.query_memory_limit_mib * MIB,
            "max_result_bytes": self._settings.result_limit_mib * MIB,
        }

    def _set_limits(self) -> str:
        return "SET " + ", ".join(f"{name} = {value}" for name, value in self._limits().items())

    @contextlib.contextmanager
    def _connection(self, call: Call) -> Iterator[Any]:
        if self._closed:
            raise EngineError(UNKNOWN_EXCEPTION, "DB::Exception: history is stopping")
        if call.session is None:
            connection = self._open_for(call)
            try:
                yield connection
            finally:
                connection.close()
            return
        session = self._session(call)
        if not session.lock.acquire(timeout=self._settings.query_limit_s):
            raise EngineError(
                SESSION_LOCKED, f"DB::Exception: Session {call.session} is locked by another query"
            )
        try:
            yield session.connection
        finally:
            session.used_s = time.monotonic()
            session.lock.release()

    def _session(self, call: Call) -> _Session:
        key = (f"{call.role}{'-' if call.read_only else ''}", call.session or "")
        now = time.monotonic()
        with self._sessions_lock:
            for other, old in list(self._sessions.items()):
                idle = now - old.used_s > self._settings.session_limit_s
                if idle and other != key and old.lock.acquire(blocking=False):
                    old.connection.close()
                    del self._sessions[other]
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = _Session(self._open_for(call))
            session.used_s = now
            return session

    def _open_for(self, call: Call) -> Any:
        connection = self._open()
        self._use_database(connection)
        if call.role != WRITER or call.read_only:
            connection.query(f"SET ROLE {READER if call.role != WRITER else WRITER}")
            connection.query(f"{self._set_limits()}, readonly = 2")
        else:
            connection.query(f"SET ROLE {WRITER}")
        return connection

    def _use_database(self, connection: Any) -> None:
        """Select the project's database on a connection, and create the database again if it was dropped.

        The sink's next insert fails without the tables, and then the sink creates them again.
        """
        use = f"USE {tables.DATABASE}"
        try:
            connection.query(use)
        except Exception as error:
            if _engine_error(error).code != UNKNOWN_DATABASE:
                raise
            connection.query(table_statements.create_all()[0])
            connection.query(use)

    def _open(self) -> Any:
        return self._connect(self._target)


def _insert(connection: Any, statement: Statement) -> Answer:
    stream = connection.send_insert(statement.text, statement.format)
    try:
        if len(statement.data):
            stream.append(statement.data)
        done = stream.finish()
    except BaseException:
        stream.cancel()
        raise
    return Answer(
        b"",
        written_rows=int(done.rows_written),
        written_bytes=int(done.bytes_written),
        elapsed_ns=int(done.elapsed * 1e9),
    )


def _engine_error(error: Exception) -> EngineError:
    text = str(error)
    match = _ERROR.search(text)
    if match is None:
        return EngineError(UNKNOWN_EXCEPTION, f"DB::Exception: {text[:2000]}")
    return EngineError(int(match[1]), _TRAILER.sub("", match[2])[:4000].strip())


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _capped(value: str, maximum: float) -> str:
    """Return `value` if it is above 0 and at most `maximum`, else `maximum`. For ClickHouse, 0 is no
    limit.
    """
    try:
        fits = 0 < float(value) <= maximum
    except ValueError:
        fits = False
    return value if fits else str(maximum)


def _take(directory: Path) -> Any:
    """Lock the directory and return the lock file. Raises DirectoryInUse if another process has locked it."""
    file = (directory / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "another process"
        file.close()
        raise DirectoryInUse(f"history directory {directory}: held by {holder}") from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}")
    file.flush()
    return file


def _write_config(directory: Path, settings: HistorySettings) -> Path:
    """Write config.xml and users.xml. Return the path of config.xml, else chdb would read any
    ./config.xml.
    """
    folder = directory / "config"
    folder.mkdir(exist_ok=True, mode=0o700)
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True, mode=0o700)
    users = folder / "users.xml"
    closed = "".join(f"<{name}><readonly/></{name}>" for name in _CLOSED_SETTINGS)
    users.write_text(
        f"""<clickhouse>
  <profiles><default>
    <async_insert>0</async_insert>
    <max_memory_usage>{settings.query_memory_limit_mib * MIB}</max_memory_usage>
    <max_result_bytes>{settings.result_limit_mib * MIB}</max_result_bytes>
    <constraints>{closed}</constraints>
  </default></profiles>
  <quotas><default/></quotas>
  <users><default>
    <no_password/><profile>default</profile><quota>default</quota>
    <grants><query>GRANT {READER}, {WRITER}</query></grants>
  </default></users>
  <roles>
    <{READER}><grants>
      <query>GRANT SELECT, SHOW ON {tables.DATABASE}.*</query>
      <query>GRANT SELECT ON system.tables</query>
      <query>GRANT SELECT ON system.columns</query>
      <query>GRANT SELECT ON system.databases</query>
      <query>GRANT SELECT ON system.parts</query>
    </grants></{READER}>
    <{WRITER}><grants>
      <query>GRANT ALL ON {tables.DATABASE}.*</query>
      <query>GRANT SELECT ON system.*</query>
      <query>GRANT TABLE ENGINE ON *</query>
      <query>GRANT READ, WRITE ON DISK</query>
    </grants></{WRITER}>
  </roles>
</clickhouse>
""",
        encoding="utf-8",
    )
    config = folder / "config.xml"
    config.write_text(
        f"""<clickhouse>
  <max_server_memory_usage>{settings.memory_limit_mib * MIB}</max_server_memory_usage>
  <mark_cache_size>{max(64, settings.memory_limit_mib // 8) * MIB}</mark_cache_size>
  <timezone>UTC</timezone>
  <tmp_path>{escape(str(temporary))}/</tmp_path>
  <user_directories><users_xml><path>{escape(str(users))}</path></users_xml></user_directories>
  <storage_configuration><disks><backups>
    <type>local</type><path>{escape(str(directory / "backups"))}/</path>
  </backups></disks></storage_configuration>
  <backups><allowed_disk>backups</allowed_disk></backups>
</clickhouse>
""",
        encoding="utf-8",
    )
    return config
