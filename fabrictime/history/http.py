"""Serves ClickHouse's HTTP protocol, as far as clickhouse-connect and Grafana's plugin need it.

A request has SQL, settings as parameters, `param_x` query parameters and a body, which may be compressed. The
response is the result in the requested format, or ClickHouse's error text, code header and status. User
`fabrictime` may write; user `reader` may read the project's tables. Each user has a token, which is compared
in constant time. `compress=1` framing and external tables are refused with an error that names them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hmac
import json
import logging
import uuid
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiohttp import web

from fabrictime.history import bodies, sql
from fabrictime.history.engine import NOT_IMPLEMENTED, READER, WRITER, Answer, Call, Engine, EngineError
from fabrictime.history.settings import HistorySettings
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES

LOG: Final = logging.getLogger(__name__)
MIB: Final = 1024 * 1024

WRITE_USER: Final = "fabrictime"
READ_USER: Final = "reader"

REQUIRED_PASSWORD: Final = 194
AUTHENTICATION_FAILED: Final = 516
TOO_LARGE: Final = 396
CANNOT_DECOMPRESS: Final = 271
BUSY: Final = 202
MAX_IN_FLIGHT: Final = 64

STATUS: Final[Mapping[int, int]] = {
    REQUIRED_PASSWORD: 401,
    AUTHENTICATION_FAILED: 403,
    sql.ACCESS_DENIED: 403,
    164: 403,
    452: 403,
    sql.SYNTAX_ERROR: 400,
    CANNOT_DECOMPRESS: 400,
    36: 400,
    47: 404,
    60: 404,
    81: 404,
    115: 404,
    NOT_IMPLEMENTED: 501,
    159: 408,
    TOO_LARGE: 413,
    BUSY: 503,
}
"""HTTP status by ClickHouse code; 500 for the rest."""

_OURS: Final = frozenset(
    {
        "query",
        "database",
        "default_format",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "user",
        "wait_end_of_query",
        "password",
        "compress",
        "decompress",
        "client_protocol_version",
        "quota_key",
        "role",
        "stacktrace",
        "buffer_size",
        "close_session",
    }
)
"""Request parameters that the endpoint itself uses; all others are settings."""


class Failure(Exception):
    """An error response: ClickHouse's code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Endpoint:
    """Serves one chdb engine over ClickHouse's HTTP protocol."""

    def __init__(self, engine: Engine, settings: HistorySettings, write_token: str, read_token: str) -> None:
        self._engine = engine
        self._limit = settings.request_limit_mib * MIB
        self._users = {WRITE_USER: (write_token, WRITER), READ_USER: (read_token, READER)}
        self._queries = ThreadPoolExecutor(settings.query_threads, "history-query")
        self._inserts = ThreadPoolExecutor(settings.insert_threads, "history-insert")
        # Each user has slots of its own: slow readers keep no insert out.
        self._bodies = {
            WRITER: asyncio.Semaphore(2 * settings.insert_threads),
            READER: asyncio.Semaphore(2 * settings.query_threads),
        }
        self._in_flight = 0
        self.inserted_rows = 0
        self.queries = 0
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the number of inserted rows as a metric."""
        yield Sample("fabrictime_history_rows_total", self.inserted_rows)

    def application(self) -> web.Application:
        """Return the aiohttp application with the endpoint's routes."""
        app = web.Application(client_max_size=self._limit)
        app.router.add_get("/ping", _ping)
        app.router.add_get("/replicas_status", _ping)
        app.router.add_route("*", "/", self._serve)
        return app

    def close(self) -> None:
        """Accept no more calls and wait until the running calls end."""
        self._queries.shutdown(wait=True)
        self._inserts.shutdown(wait=True)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        try:
            if request.method not in ("GET", "POST", "HEAD"):
                raise Failure(501, f"method {request.method}: expected GET or POST")
            if request.method != "POST" and not request.query.get("query"):
                return web.Response(text="Ok.\n")
            role = self._role(request)
            if self._in_flight >= MAX_IN_FLIGHT:
                raise Failure(BUSY, f"Too many simultaneous queries. Maximum: {MAX_IN_FLIGHT}")
            self._in_flight += 1
            try:
                async with self._bodies[role]:
                    body, params = await self._read(request)
                    return await self._run(request, role, body, params, query_id)
            finally:
                self._in_flight -= 1
        except (Failure, EngineError, sql.Refused) as error:
            return _failed(error.code, str(error), query_id)

    def _role(self, request: web.Request) -> str:
        headers = request.headers
        user, key = headers.get("X-ClickHouse-User"), headers.get("X-ClickHouse-Key")
        kind, _, credentials = headers.get("Authorization", "").partition(" ")
        if key is None and kind.lower() == "basic":
            try:
                user, _, key = base64.b64decode(credentials, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise Failure(
                    AUTHENTICATION_FAILED, "Authorization: expected base64 of user:password"
                ) from None
        elif key is None and kind.lower() == "bearer":
            key = credentials
        if key is None:
            user, key = request.query.get("user", user), request.query.get("password")
        if not key:
            raise Failure(REQUIRED_PASSWORD, "Authentication is required: user and password (the token)")
        user_role = None
        for name, (token, role) in self._users.items():
            right = hmac.compare_digest(token.encode(), key.encode())
            if right and user in (None, "", "default", name):
                user_role = role
        if user_role is None:
            user = (user or "default")[:64]
            raise Failure(AUTHENTICATION_FAILED, f"{user}: Authentication failed: password is incorrect")
        return user_role

    async def _read(self, request: web.Request) -> tuple[bytes, dict[str, str]]:
        """Return (body, parameters) of a request. The body continues the SQL in the parameter `query`."""
        params = dict(request.query)
        if request.content_length is not None and request.content_length > self._limit:
            raise Failure(
                TOO_LARGE, f"body of {request.content_length} bytes, expected at most {self._limit}"
            )
        body = b""
        if request.content_type == "multipart/form-data":
            params |= await _form_fields(request)
        elif request.can_read_body:
            body = await self._body(request)
        for name in ("compress", "decompress"):
            if params.get(name, "0") not in ("0", "", "false"):
                raise Failure(NOT_IMPLEMENTED, f"{name}=1 is not supported: use Content-Encoding")
        return body, params

    async def _body(self, request: web.Request) -> bytes:
        """Return the uncompressed body of a request."""
        pieces, size = [], 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > self._limit:
                raise Failure(TOO_LARGE, f"body of more than {self._limit} bytes")
            pieces.append(piece)
        body = b"".join(pieces)
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding == "identity" or not body:
            return body
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._inserts, bodies.unpack, body, encoding, self._limit)
        except bodies.TooLarge as error:
            raise Failure(TOO_LARGE, str(error)) from error
        except bodies.BadBody as error:
            raise Failure(CANNOT_DECOMPRESS, f"Cannot decompress body: {error}") from error

    async def _run(
        self, request: web.Request, role: str, body: bytes, params: Mapping[str, str], query_id: str
    ) -> web.Response:
        query = params.get("query", "").encode()
        statement = sql.parse(query, body) if query else sql.parse(body)
        if role != WRITER:
            sql.check_reader(statement)
        result_format = (
            params.get("default_format") or request.headers.get("X-ClickHouse-Format") or "TabSeparated"
        )
        call = Call(
            statement,
            role,
            format=result_format,
            database=params.get("database") or request.headers.get("X-ClickHouse-Database") or None,
            settings={k: v for k, v in params.items() if k not in _OURS and not k.startswith("param_")},
            params={k.removeprefix("param_"): v for k, v in params.items() if k.startswith("param_")},
            read_only=request.method != "POST",
            session=params.get("session_id") or None,
        )
        inserting = statement.keyword == "INSERT"
        pool = self._inserts if inserting else self._queries
        answer = await asyncio.get_running_loop().run_in_executor(
            pool, functools.partial(self._engine.run, call)
        )
        self.queries += not inserting
        self.inserted_rows += answer.written_rows
        return _answered(request, answer, query_id, _format_of(statement.text, result_format), params)


async def _ping(_: web.Request) -> web.Response:
    return web.Response(text="Ok.\n")


def _format_of(text: str, result_format: str) -> str:
    """Return the format of a result: the format at the end of the statement, else `result_format`."""
    last_tokens = [token.text for token in sql.tokens(text)][-2:]
    return last_tokens[1] if len(last_tokens) == 2 and last_tokens[0].upper() == "FORMAT" else result_format


def _answered(
    request: web.Request, answer: Answer, query_id: str, result_format: str, params: Mapping[str, str]
) -> web.Response:
    summary = {
        "read_rows": str(answer.read_rows),
        "read_bytes": str(answer.read_bytes),
        "written_rows": str(answer.written_rows),
        "written_bytes": str(answer.written_bytes),
        "total_rows_to_read": "0",
        "result_rows": "0",
        "result_bytes": str(len(answer.body)),
        "elapsed_ns": str(answer.elapsed_ns),
    }
    headers = {
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Summary": json.dumps(summary),
        "X-ClickHouse-Timezone": "UTC",
        "X-ClickHouse-Server-Display-Name": "fabrictime",
    }
    if answer.body:
        headers["X-ClickHouse-Format"] = result_format
    body = answer.body
    encodings = request.headers.get("Accept-Encoding", "")
    if (
        params.get("enable_http_compression") == "1"
        and "gzip" in encodings
        and len(body) > 4096
        and not _near(request)
    ):
        packer = zlib.compressobj(1, wbits=31)
        body = packer.compress(body) + packer.flush()
        headers["Content-Encoding"] = "gzip"
    kind = "application/json" if result_format.upper().startswith("JSON") else "application/octet-stream"
    return web.Response(body=body, headers=headers, content_type=kind)


def _near(request: web.Request) -> bool:
    """Return whether the client accepts uncompressed or lz4 responses. Such a client is on loopback, where
    gzip costs more time than it saves.
    """
    return "identity" in request.headers.get("Accept-Encoding", "") or "lz4" in request.headers.get(
        "Accept-Encoding", ""
    )


def _failed(code: int, text: str, query_id: str) -> web.Response:
    text = text if text.startswith("DB::") else f"DB::Exception: {text}"
    LOG.info("refused query=%s code=%d %s", query_id, code, text[:200].replace("\n", " "))
    headers: dict[str, Any] = {"X-ClickHouse-Exception-Code": str(code), "X-ClickHouse-Query-Id": query_id}
    return web.Response(status=STATUS.get(code, 500), headers=headers, text=f"Code: {code}. {text}\n")


async def _form_fields(request: web.Request) -> dict[str, str]:
    """Return the fields of a multipart form. Raises Failure if it has a file, that is, an external table."""
    fields = {}
    async for part in await request.multipart():
        name = getattr(part, "name", None)
        if not isinstance(name, str) or getattr(part, "filename", None) is not None:
            raise Failure(NOT_IMPLEMENTED, "external tables are not supported by this endpoint")
        fields[name] = (await part.read()).decode()  # type: ignore[union-attr]
    return fields
