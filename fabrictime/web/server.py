"""The live page's process: one HTTP server on loopback, one hub of queries, any number of tabs.

In: PageSettings. Out: `/` (the page) and `/healthz` (JSON: whether the page runs and history answers).
Everything that a browser loads comes from this server; its headers forbid anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sdnotify import SystemdNotifier

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.fabric_consumer import FabricConsumer
from fabrictime.web.history_client import connect_http
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.query_poller import THREADS, QueryPoller, Snapshot
from fabrictime.web.settings import WebSettings
from schemas import codec
from schemas.topics import FLOWS

log = logging.getLogger(__name__)

HEADERS = {
    b"content-security-policy": (
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        b"style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        b"object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


def main(settings: WebSettings) -> int:
    """Serve the page until SIGTERM or SIGINT; return 0, or 1 with a line on stderr where it cannot listen."""
    try:
        listener = _listen(settings)
    except OSError as error:
        print(f"fabrictime page: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    with contextlib.closing(listener):
        return asyncio.run(_serve(settings, listener))


def _listen(settings: WebSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"page.port {settings.port} on {settings.host}: {error.strerror}, expected a free port",
        ) from error
    listener.listen(128)
    return listener


async def _serve(settings: WebSettings, listener: socket.socket) -> int:
    import uvicorn

    url = str(settings.history_url)
    history = connect_http(
        url,
        settings.history_user,
        settings.history_token_file,
        settings.history_database,
        settings.query_timeout_s,
        THREADS,
    )
    hub = QueryPoller(settings.refresh_ms / 1000)
    live, feed = _feed(settings)
    app = _application(settings, hub, history, live)
    ready = asyncio.Event()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        ws_ping_interval=None,
        lifespan="on",
    )

    class Server(uvicorn.Server):
        """Leaves signals to us: uvicorn would raise them again and hide our exit code."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    server = Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    if live is not None and feed is not None:
        live.run_in(loop)
        feed.start()
    serving = loop.create_task(server.serve(sockets=[listener]))
    await asyncio.wait((serving, loop.create_task(ready.wait())), return_when=asyncio.FIRST_COMPLETED)
    notifier = SystemdNotifier()
    if server.started:
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        if settings.port_file is not None:
            settings.port_file.write_text(f"{port}\n", encoding="ascii")
        log.info("live page on http://%s:%d/, history at %s", host, port, url)
        notifier.notify(f"READY=1\nSTATUS=http://{host}:{port}/")
    await serving
    notifier.notify("STOPPING=1")
    if feed is not None:
        await asyncio.to_thread(feed.stop)
    await hub.close()
    history.close()
    log.info("live page stopped")
    return 0 if server.started else 1


def _feed(settings: WebSettings) -> tuple[LiveFabric | None, FabricConsumer | None]:
    """Return the live state and what fills it; None where no log is named."""
    if settings.bootstrap is None:
        return None, None
    registry = _registry(settings)
    state = FabricState(lambda value: codec.decode(value, FLOWS.record, registry))
    feed = FabricConsumer(settings.bootstrap, state, lambda parts: live.changed(parts), registry)
    live = LiveFabric(state, lambda: feed.status, time.time_ns)
    return live, feed


def _registry(settings: WebSettings) -> codec.Registry | None:
    if settings.schema_registry_url is None:
        return None
    from schemas.registry import ConfluentRegistry

    return ConfluentRegistry(settings.schema_registry_url)


def _application(settings: WebSettings, hub: QueryPoller, history: Any, live: LiveFabric | None) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse
    from nicegui import ui

    from fabrictime.web.history_queries import Fleet, HistoryQueries
    from fabrictime.web.tabs.actions.view import ActionsChoice, ActionsTab
    from fabrictime.web.tabs.alerts.evidence import reader
    from fabrictime.web.tabs.alerts.view import AlertsChoice, AlertsTab
    from fabrictime.web.tabs.base import AppContext, Tab
    from fabrictime.web.tabs.clocks.view import ClocksChoice, ClocksTab
    from fabrictime.web.tabs.contention.view import ContentionChoice, ContentionTab
    from fabrictime.web.tabs.delays.view import DelaysChoice, DelaysTab
    from fabrictime.web.tabs.fabric.queries import LinkQueries
    from fabrictime.web.tabs.fabric.view import FabricChoice, FabricTab

    questions = HistoryQueries(history)
    fabric = None if live is None else LinkQueries(live.state, history)
    evidence = None if settings.bootstrap is None else reader(settings.bootstrap, _registry(settings))
    site = AppContext(settings, hub, questions, live, fabric, evidence)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(title="fabrictime", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        """Tell whether history answers; 503 where it does not."""

        answered = asyncio.Event()
        snapshot: Snapshot[Fleet] = Snapshot()

        def keep(newest: Snapshot[Fleet]) -> None:
            nonlocal snapshot
            snapshot = newest
            answered.set()

        end = hub.subscribe(("fleet",), questions.fleet, keep)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), settings.query_timeout_s)
        end()
        value = snapshot.value if snapshot.error is None else None
        body = {
            "history": "ok" if value is not None else str(snapshot.error or "no answer yet"),
            "data_age_s": value.delays_age_s if value is not None else None,
            "nics": len(value.nics) if value is not None else None,
            "tabs": len(site.tabs),
            "views": hub.views,
            "polls": hub.polls,
            "uptime_s": round(time.monotonic() - started_s, 1),
        }
        return JSONResponse(body, status_code=200 if value is not None else 503)

    def serve(page: Tab) -> None:
        client = ui.context.client
        page.build()
        tab = id(page)

        def begin() -> None:
            site.tabs.add(tab)
            with client:
                page.start()
                page.start_live()

        def end() -> None:
            site.tabs.discard(tab)
            page.stop()

        client.on_connect(begin)
        client.on_disconnect(end)

    @ui.page("/", title="fabrictime", dark=None)
    def index() -> None:
        serve(DelaysTab(site, DelaysChoice.parse(dict(ui.context.client.request.query_params))))

    @ui.page("/clocks", title="fabrictime: clocks", dark=None)
    def clocks() -> None:
        query = ui.context.client.request.query_params
        serve(ClocksTab(site, ClocksChoice.parse(dict(query), query.getlist("clock"))))

    @ui.page("/fabric", title="fabrictime: fabric", dark=None)
    def fabric_page() -> None:
        serve(FabricTab(site, FabricChoice.parse(dict(ui.context.client.request.query_params))))

    @ui.page("/contention", title="fabrictime: contention", dark=None)
    def contention_page() -> None:
        serve(ContentionTab(site, ContentionChoice.parse(dict(ui.context.client.request.query_params))))

    @ui.page("/actions", title="fabrictime: actions", dark=None)
    def actions_page() -> None:
        serve(ActionsTab(site, ActionsChoice.parse(dict(ui.context.client.request.query_params))))

    @ui.page("/alerts", title="fabrictime: alerts", dark=None)
    def alerts_page() -> None:
        serve(AlertsTab(site, AlertsChoice.parse(dict(ui.context.client.request.query_params))))

    started_s = time.monotonic()
    ui.run_with(
        app,
        title="fabrictime",
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        message_history_length=64,
        reconnect_timeout=5.0,
        favicon=_FAVICON,
    )
    return _Guard(app, settings.host)


_FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="3" fill="#151a21"/>'
    '<rect x="3" y="3" width="4" height="4" fill="#fde725"/>'
    '<rect x="9" y="3" width="4" height="4" fill="#21918c"/>'
    '<rect x="3" y="9" width="4" height="4" fill="#355f8d"/>'
    '<rect x="9" y="9" width="4" height="4" fill="#7ad151"/></svg>'
)


class _Guard:
    """ASGI wrapper: strict headers; on loopback only requests that name a loopback host, from its own pages.

    The last two stop a foreign web page in the same browser from reaching the page by DNS or by websocket.
    """

    def __init__(self, app: Any, host: str) -> None:
        self._app = app
        self._loopback = _is_loopback(host)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        foreign = origin not in ("", f"http://{host}", f"https://{host}")
        if foreign or (self._loopback and not _is_loopback(_name(host))):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await send(
                {"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]}
            )
            await send({"type": "http.response.body", "body": b"wrong host or origin\n"})
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((k, v) for k, v in HEADERS.items() if k not in present),
                ]
            await send(message)

        await self._app(scope, receive, with_headers)


def _name(host: str) -> str:
    return host[1 : host.index("]")] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
