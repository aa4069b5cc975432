"""The stream worker: runs the Faust apps of its stages in this process until SIGTERM or SIGINT.

It reports readiness to systemd once partitions are assigned, global tables have caught up and stages are
recovered. No port is opened. The history sink has an app and a consumer group of its own, so that a failed
ClickHouse delays no other stage.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import faust
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.types import TP
from faust.types.auth import CredentialsT
from sdnotify import SystemdNotifier

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.topics import MAX_MESSAGE_BYTES
from streams.alerts.stage import AlertsStage
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.diagnosis.stage import DiagnosisStage
from streams.links.probe_schedule_stage import ScheduleStage
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.assignment import Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.faust.groupless_stage import GrouplessStage
from streams.runtime.faust.operator_stage import OperatorStage
from streams.runtime.faust_compat import NO_READ_AHEAD_S, run_consumer_in_loop, tune_fetcher
from streams.runtime.operator import Stage
from streams.runtime.rejects import send_reject
from streams.runtime.settings import Stage as StageName
from streams.runtime.settings import StreamSettings
from streams.runtime.watchdog import watch

__all__ = ["build_app", "main"]

log = logging.getLogger(__name__)

STAGES: Final[tuple[tuple[StageName, type[Stage] | type[ScheduleStage]], ...]] = (
    ("map", DelayStage),
    ("solve", ClockStage),
    ("solve", ScheduleStage),
    ("links", LinksStage),
    ("links", AlertsStage),
    ("solve", ContentionStage),
    ("solve", QueuesStage),
    ("solve", DiagnosisStage),
    ("policy", PolicyStage),
)
"""The stages by their name in the settings."""
APP_STAGES: Final[tuple[tuple[str, set[StageName]], ...]] = (
    ("", {"map", "solve"}),
    ("-links", {"links"}),
    ("-policy", {"policy"}),
)
"""Stages that share an app, and the suffix of its consumer group."""
FAST_STAGES: Final[set[StageName]] = {"links", "policy"}
"""Stages that react within milliseconds: their fetches return at the first message."""
REPEAT_S: Final = 10.0
"""s between two prints of the same log line of a client library."""
EXIT_S: Final = 2.0
"""s that threads have to end after the worker stopped; their messages are unacknowledged."""
READ_AHEAD_S: Final = 0.015
URGENT_WAIT_MS: Final = 500
"""ms of an urgent fetch, which ends with the first message."""
GATHER_WAIT_MS: Final = 25
"""ms for which the broker collects messages: a fetch of one message costs as much as one of twenty."""
SINK_WAIT_MS: Final = 500
GATHER_BYTES: Final = 1 << 20
"""Bytes at which a fetch returns at once, and the wait of the history sink, which is not urgent."""


def build_app(name: str, settings: StreamSettings, datadir: Path) -> faust.App:
    """Return a Faust app with this project's settings, whose consumer delivers batches."""
    app = faust.App(
        name,
        broker=[f"kafka://{address}" for address in settings.kafka.bootstrap.split(",")],
        broker_credentials=_credentials(settings.kafka),
        datadir=str(datadir),
        store="memory://",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        key_serializer="raw",
        value_serializer="raw",
        autodiscover=False,
        broker_session_timeout=float(settings.session_timeout_s),
        broker_heartbeat_interval=1.0,
        broker_rebalance_timeout=float(settings.session_timeout_s),
        broker_commit_interval=settings.commit_interval_ms / 1000,
        broker_check_crcs=False,
        stream_buffer_maxsize=settings.buffer_messages,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=settings.fetch_kib * 1024,
        producer_acks=-1,
        producer_linger=0.0,
        producer_max_request_size=MAX_MESSAGE_BYTES + 64 * 1024,
        worker_redirect_stdouts=False,
    )
    run_consumer_in_loop(app)
    return app


def _credentials(cluster: KafkaSettings) -> CredentialsT | None:
    """Return the cluster's security as Faust takes it. Raises ValueError for an unreadable file."""
    options = cluster.aiokafka_options()
    context = options.get("ssl_context")
    if "sasl_oauth_token_provider" in options:
        return OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if cluster.sasl_mechanism is not None:
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=cluster.sasl_mechanism,
        )
    return None if context is None else SSLCredentials(context)


class _Service:
    """The stages of one app and consumer group."""

    def __init__(
        self,
        settings: StreamSettings,
        group: str,
        stages: set[StageName],
        registry: codec.Registry | None,
        datadir: Path,
        ready: Callable[[int], None],
        note: Callable[[str, str], None],
    ) -> None:
        """`ready` is called with the number of partitions whenever they are recovered, `note` with lines of
        the worker's status."""
        self.app = build_app(group, settings, datadir)
        self.context = WorkerContext(self.app, settings, registry, flows="solve" in stages)
        self.context.reject = self._reject_soon
        self.context.note = note
        self.owned = [self._ownership(stage) for name, stage in STAGES if name in stages]
        for owned in self.owned:
            owned.register()
        self._read_ahead_s = NO_READ_AHEAD_S if "links" in stages else READ_AHEAD_S
        self._fetch = (URGENT_WAIT_MS, 1) if stages <= FAST_STAGES else (GATHER_WAIT_MS, GATHER_BYTES)
        self._ready = ready
        self._watching = False
        signals: Any = self.app
        signals.on_partitions_assigned.connect(self._assigned)
        signals.on_partitions_revoked.connect(self._revoked)
        signals.on_before_shutdown.connect(self._stopping)

    def _ownership(self, stage: type[Stage] | type[ScheduleStage]) -> Ownership:
        """Return the partitions of a stage that this service runs."""
        if issubclass(stage, ScheduleStage):
            return stage(self.context).partitions
        if stage.per_partition:
            return OperatorStage(self.context, stage())
        return GrouplessStage(self.context, stage()).partitions

    async def _assigned(self, app: Any, assigned: set[TP], *_: Any, **__: Any) -> None:
        tune_fetcher(app, self._read_ahead_s, *self._fetch)
        for owned in self.owned:
            owned.assign(tp for tp in sorted(assigned) if tp.topic == owned.topic.name)
        self.context.task("readiness", self._report_ready(len(assigned)))
        if not self._watching:
            self._watching = True
            self.context.task("watchdog", watch(self.context, self.owned))

    async def _revoked(self, app: Any, *_: Any, **__: Any) -> None:
        await asyncio.gather(*(owned.revoke() for owned in self.owned))

    async def _report_ready(self, partitions: int) -> None:
        await self.context.tables_caught_up()
        for owned in self.owned:
            await owned.ready()
        self._ready(partitions)

    async def _stopping(self, app: Any, *_: Any, **__: Any) -> None:
        SystemdNotifier().notify("STOPPING=1")
        await asyncio.gather(*(owned.revoke() for owned in self.owned))
        await self.context.stop()

    def _reject_soon(self, message: Message, error: Exception) -> None:
        async def send() -> None:
            await (await send_reject(self.context, message, "lookup", error))

        self.context.task("reject", send())


def main(settings: StreamSettings) -> int:
    """Run one worker in this process. Returns 0 after SIGTERM or SIGINT, 70 after an abort."""
    _quiet_libraries()
    registry = settings.kafka.registry()
    datadir = Path(tempfile.mkdtemp(prefix="fabrictime-stream-"))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        services: list[_Service] = []
        readiness = _Readiness()
        for suffix, stages in APP_STAGES:
            mine = stages & set(settings.stages)
            if mine:
                ready = readiness.part()
                group = settings.group + suffix
                services.append(_Service(settings, group, mine, registry, datadir, ready, readiness.note))
        apps = [service.app for service in services]
        if "sink" in settings.stages and settings.history is not None:
            sink = build_app(f"{settings.group}-sink", settings, datadir)
            importlib.import_module("streams.history.stage").register(sink, settings.history, registry)
            apps.append(sink)
            signals: Any = sink
            signals.on_partitions_assigned.connect(_gather_fetches)
            if not services:
                signals.on_partitions_assigned.connect(_ready_at_once)
        if not apps:
            raise ValueError(f"stages {settings.stages}: nothing to run, the sink needs history")
        gc.freeze()  # modules and schemas live as long as the process: collections need not visit them
        _run(apps, loop)
        code = 70 if any(service.context.failed is not None for service in services) else 0
        _end_soon(code)
        return code
    finally:
        shutil.rmtree(datadir, ignore_errors=True)


class _Readiness:
    """Reports readiness and status to the supervisor once all services are ready."""

    def __init__(self) -> None:
        self._partitions: list[int | None] = []
        self._notes: dict[str, str] = {}
        """Subject to a line of the status."""

    def part(self) -> Callable[[int], None]:
        """Add a service; return the function that it calls with the number of its partitions."""
        at = len(self._partitions)
        self._partitions.append(None)

        def ready(partitions: int) -> None:
            self._partitions[at] = partitions
            if self._report():
                SystemdNotifier().notify("READY=1")

        return ready

    def note(self, subject: str, text: str) -> None:
        """Add a line about a subject to the status, or remove it."""
        before = self._notes.pop(subject, "")
        if text:
            self._notes[subject] = text
        if text != before:
            self._report()

    def _report(self) -> bool:
        """Report the status; return whether all services are ready."""
        known = [each for each in self._partitions if each is not None]
        if len(known) < len(self._partitions):
            return False
        notes = [self._notes[subject] for subject in sorted(self._notes)]
        SystemdNotifier().notify(f"STATUS={'; '.join([f'{sum(known)} partitions', *notes])}")
        return True


class _Repeated(logging.Filter):
    """Suppresses repeated log lines of the client libraries: an unreachable broker causes hundreds a
    second."""

    def __init__(self) -> None:
        super().__init__()
        self._printed_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to print the line."""
        if not record.name.startswith(("aiokafka", "faust", "mode")):
            return True
        key = (record.name, str(record.msg))
        if record.created - self._printed_s.get(key, 0.0) < REPEAT_S:
            return False
        self._printed_s[key] = record.created
        return True


def _quiet_libraries() -> None:
    for name in ("aiokafka", "faust", "mode"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Repeated())


def _end_soon(code: int) -> None:
    """Exit the process with `code` soon, even if a thread hangs, for instance in an insert."""
    last = threading.Timer(EXIT_S, os._exit, (code,))
    last.daemon = True
    last.start()


async def _gather_fetches(app: Any, *_: Any, **__: Any) -> None:
    """Let the sink's fetches collect half a second of messages."""
    tune_fetcher(app, READ_AHEAD_S, SINK_WAIT_MS, GATHER_BYTES)


async def _ready_at_once(app: Any, *_: Any, **__: Any) -> None:
    SystemdNotifier().notify("READY=1")


def _run(apps: list[faust.App], loop: asyncio.AbstractEventLoop) -> None:
    worker = faust.Worker(
        apps[0],
        *apps[1:],
        loop=loop,
        quiet=True,
        override_logging=False,
        redirect_stdouts=False,
        workdir=os.getcwd(),
    )
    worker.spinner = None
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise
