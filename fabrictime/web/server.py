"""The web page's process: an HTTP server, one poller of history queries, and any number of tabs.

The server has one path per tab (the first one also at `/`), `/api/v1`, and `/healthz` (JSON: whether the
history answers). With `web.login`, it admits users only. A browser loads everything from this server; HTTP
headers forbid other sources.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from fabrictime.state.evidence_reader import EvidenceSettings, EvidenceWatch, fresh_s_of
from fabrictime.state.fabric_consumer import FabricConsumer
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.fleet_metrics import FleetMetrics
from fabrictime.web.history_client import connect_http
from fabrictime.web.host_guard import HostGuard
from fabrictime.web.live_fabric import VERDICTS, LiveFabric
from fabrictime.web.login import LoginGuard
from fabrictime.web.query_poller import THREADS, QueryPoller, Snapshot
from fabrictime.web.service_faults import ServiceFaults
from fabrictime.web.settings import WebSettings
from fabrictime.web.users import Users
from schemas import codec
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.secret_file import read_secret
from schemas.service_notifier import ServiceNotifier
from schemas.topics import FLOWS

if TYPE_CHECKING:
    from fabrictime.web.tabs.base import AppContext, Tab
    from fabrictime.web.tabs.delays.queries import Fleet

log = logging.getLogger(__name__)


def main(settings: WebSettings) -> int:
    """Serve the page until SIGTERM or SIGINT. Return 0, or 1 with a line on stderr if it cannot listen."""
    try:
        users = Users(settings.login)
        tls = _tls(settings)
        listener = _listen(settings)
    except (OSError, ValueError) as error:
        print(f"fabrictime web: {getattr(error, 'strerror', None) or error}", file=sys.stderr, flush=True)
        return 1
    with contextlib.closing(listener):
        return asyncio.run(_serve(settings, listener, users, tls))


def _tls(settings: WebSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the server; None for HTTP. Raises ValueError for unusable files."""
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        return None
    read_secret(settings.tls_key_file, "web.tls_key_file", "a private key (PEM)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file, password=lambda: b"")
    except OSError as error:
        names = f"{settings.tls_certificate_file}, {settings.tls_key_file}"
        raise ValueError(f"web.tls_certificate_file {names}: {error.strerror}, expected a pair") from None
    return context


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
            f"web.port {settings.port} on {settings.host}: {error.strerror}, expected a free port",
        ) from error
    listener.listen(128)
    return listener


async def _serve(
    settings: WebSettings, listener: socket.socket, users: Users, tls: ssl.SSLContext | None
) -> int:
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
    poller = QueryPoller(settings.refresh_ms / 1000)
    live, consumer, evidence = _live_fabric(settings)
    app = _application(settings, poller, history, live, users)
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
        proxy_headers=False,  # the address of a client is that of its connection
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )

    class Server(uvicorn.Server):
        """A uvicorn server without signal handlers: those of uvicorn raise the signal again at the end, which
        changes the exit code.
        """

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
    if live is not None and consumer is not None and evidence is not None:
        live.run_in(loop)
        consumer.start()
        evidence.start()
    serving = loop.create_task(server.serve(sockets=[listener]))
    await asyncio.wait((serving, loop.create_task(ready.wait())), return_when=asyncio.FIRST_COMPLETED)
    notifier = ServiceNotifier()
    if server.started:
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        if settings.port_file is not None:
            settings.port_file.write_text(f"{port}\n", encoding="ascii")
        page = f"{settings.scheme}://{host}:{port}/"
        log.info("web page on %s, history at %s", page, url)
        notifier.notify(f"READY=1\nSTATUS={page}")
    await serving
    notifier.notify("STOPPING=1")
    if consumer is not None and evidence is not None:
        await asyncio.to_thread(consumer.stop)
        await asyncio.to_thread(evidence.stop)
    await poller.close()
    history.close()
    log.info("web page stopped")
    return 0 if server.started else 1


def _live_fabric(
    settings: WebSettings,
) -> tuple[LiveFabric | None, FabricConsumer | None, EvidenceWatch | None]:
    """Return the live state, its consumer, and the watch of its evidence; all are None without a log
    address.
    """
    if settings.kafka is None:
        return None, None, None
    registry = settings.kafka.registry()
    state = FabricState(lambda value: codec.decode(value, FLOWS.type, registry))
    consumer = FabricConsumer(settings.kafka, state, lambda parts: live.changed(parts), registry)
    fresh_s = fresh_s_of(settings.window_ms, settings.commit_interval_ms)
    evidence = EvidenceWatch(
        EvidenceSettings(settings.kafka, settings.links_group, fresh_s), lambda: live.changed(VERDICTS)
    )
    live = LiveFabric(state, lambda: consumer.status, time.time_ns, evidence.verdict)
    live.metrics = FleetMetrics(state, time.time_ns, lambda: consumer.status.unreadable)
    return live, consumer, evidence


def _application(
    settings: WebSettings, poller: QueryPoller, history: Any, live: LiveFabric | None, users: Users
) -> Any:
    from fastapi import FastAPI
    from nicegui import ui

    from fabrictime.web.history_reader import HistoryReader
    from fabrictime.web.past_fabric import PastFabric
    from fabrictime.web.tabs.alerts.evidence import evidence_reader
    from fabrictime.web.tabs.base import AppContext
    from fabrictime.web.tabs.fabric.queries import LinkQueries
    from fabrictime.web.tabs.jobs.queries import JobQueries

    evidence = None if settings.kafka is None else evidence_reader(settings.kafka)
    links = None if live is None else LinkQueries(live.state, history)
    jobs = None if live is None or settings.kafka is None else JobQueries(live.state, history, settings.kafka)
    services = ServiceFaults(settings.state_file)
    reader = HistoryReader(history, time.time_ns if live is None else live.now_ns)
    past = None
    if live is not None and settings.kafka is not None:
        past = PastFabric(live, settings.kafka, settings.kafka.registry())
    context = AppContext(settings, poller, reader, live, links, evidence, jobs, services, past=past)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(
        title="fabrictime",
        description="What is wrong in the fleet, which jobs are slow, what was done. Users with the role "
        "configure note alerts; those with the role act pause and resume action.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    SOURCES.add(lambda: [Sample("fabrictime_web_tabs", len(context.tabs))])
    _add_health_check(app, context)
    if live is not None:
        from fabrictime.web.api import Api
        from fabrictime.web.changes import Changes

        if settings.login.is_set and settings.kafka is not None:
            app.include_router(Changes(settings.kafka, settings.control).router())
        app.include_router(Api(live).router())
    _add_tabs(context)
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
    login = settings.login
    inner: Any = app
    if login.is_set:
        inner = LoginGuard(app, users, login.proxy_header, secure=settings.scheme == "https")
    return HostGuard(inner, settings.host, login.hosts)


def _add_health_check(app: Any, context: AppContext) -> None:
    from fastapi.responses import JSONResponse

    from fabrictime.web.tabs.delays.queries import fleet

    poller, history = context.poller, context.history
    started_s = time.monotonic()

    async def healthz() -> JSONResponse:
        """Return whether the history answers as JSON, with HTTP status 503 if it does not."""
        answered = asyncio.Event()
        snapshot: Snapshot[Fleet] = Snapshot()

        def keep(newest: Snapshot[Fleet]) -> None:
            nonlocal snapshot
            snapshot = newest
            answered.set()

        unsubscribe = poller.subscribe((fleet, history), lambda: fleet(history), keep)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), context.settings.query_timeout_s)
        unsubscribe()
        value = snapshot.value if snapshot.error is None else None
        body = {
            "history": "ok" if value is not None else str(snapshot.error or "no answer yet"),
            "data_age_s": value.delays_age_s if value is not None else None,
            "nics": len(value.nics) if value is not None else None,
            "tabs": len(context.tabs),
            "queries": poller.queries,
            "polls": poller.polls,
            "uptime_s": round(time.monotonic() - started_s, 1),
        }
        return JSONResponse(body, status_code=200 if value is not None else 503)

    app.add_api_route("/healthz", healthz, response_model=None, include_in_schema=False)


def _add_tabs(context: AppContext) -> None:
    from nicegui import app as pages
    from nicegui import ui
    from starlette.requests import Request
    from starlette.responses import HTMLResponse

    from fabrictime.web.elements import HEAD
    from fabrictime.web.first_paint import first_html
    from fabrictime.web.tabs.actions.view import ActionsChoice, ActionsTab
    from fabrictime.web.tabs.alerts.view import AlertsChoice, AlertsTab
    from fabrictime.web.tabs.audit.view import AuditChoice, AuditTab
    from fabrictime.web.tabs.clocks.view import ClocksChoice, ClocksTab
    from fabrictime.web.tabs.contention.view import ContentionChoice, ContentionTab
    from fabrictime.web.tabs.delays.view import DelaysChoice, DelaysTab
    from fabrictime.web.tabs.fabric.view import FabricChoice, FabricTab
    from fabrictime.web.tabs.jobs.view import JobsChoice, JobsTab
    from fabrictime.web.tabs.now.view import NowChoice, NowTab
    from fabrictime.web.tabs.pipeline.view import PipelineChoice, PipelineTab
    from fabrictime.web.time_bar import TimeChoice

    def serve(path: str, title: str, make: Callable[[Any], Tab[Any]]) -> None:
        def page() -> None:
            client = ui.context.client
            query = client.request.query_params
            tab = make(query)
            tab.user = getattr(client.request.state, "user", None)
            tab.at_time(TimeChoice.parse(query, time.time_ns()))
            ui.add_head_html(HEAD)
            tab.build()
            tab.show_first()
            ui.add_body_html(first_html(client.content))

            async def connected() -> None:
                context.tabs.add(id(tab))
                with client:
                    tab.start()
                    tab.start_live()
                    tab.resume()
                    if tab.time.at_ns is not None:
                        await tab.show_time()

            def disconnected() -> None:
                context.tabs.discard(id(tab))
                tab.stop()

            client.on_connect(connected)
            client.on_disconnect(disconnected)

        ui.page(path, title=title, dark=None)(page)

    def delays(query: Any) -> Tab[Any]:
        return DelaysTab(context, DelaysChoice.parse(dict(query)))

    def first(query: Any) -> Tab[Any]:
        """Return the tab Now; for an address of an earlier version, or without a log, the tab Delays."""
        is_old = not query.keys() <= {"at", "range"}
        return delays(query) if is_old or context.live is None else NowTab(context, NowChoice())

    @pages.exception_handler(404)
    async def missing(request: Request, _error: Exception) -> HTMLResponse:
        path = html.escape(request.url.path)
        return HTMLResponse(f'<p>There is no page {path}. <a href="/">Open the tab Now.</a></p>', 404)

    serve("/", "fabrictime", first)
    serve("/now", "fabrictime: now", lambda _: NowTab(context, NowChoice()))
    serve("/delays", "fabrictime: delays", delays)
    serve(
        "/clocks",
        "fabrictime: clocks",
        lambda q: ClocksTab(context, ClocksChoice.parse(dict(q), q.getlist("clock"))),
    )
    serve("/fabric", "fabrictime: fabric", lambda q: FabricTab(context, FabricChoice.parse(dict(q))))
    serve(
        "/contention",
        "fabrictime: contention",
        lambda q: ContentionTab(context, ContentionChoice.parse(dict(q))),
    )
    serve("/jobs", "fabrictime: jobs", lambda q: JobsTab(context, JobsChoice.parse(dict(q))))
    serve("/actions", "fabrictime: actions", lambda q: ActionsTab(context, ActionsChoice.parse(dict(q))))
    serve("/alerts", "fabrictime: alerts", lambda q: AlertsTab(context, AlertsChoice.parse(dict(q))))
    serve("/pipeline", "fabrictime: pipeline", lambda _: PipelineTab(context, PipelineChoice()))
    serve("/audit", "fabrictime: audit", lambda q: AuditTab(context, AuditChoice.parse(dict(q))))


_FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="3" fill="#151a21"/>'
    '<rect x="3" y="3" width="4" height="4" fill="#fde725"/>'
    '<rect x="9" y="3" width="4" height="4" fill="#21918c"/>'
    '<rect x="3" y="9" width="4" height="4" fill="#355f8d"/>'
    '<rect x="9" y="9" width="4" height="4" fill="#7ad151"/></svg>'
)
