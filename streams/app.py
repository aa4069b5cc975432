"""The stream worker: builds the Faust app of its stages and runs it in this process until SIGTERM or SIGINT.

In: `StreamSettings`. Out: an exit code, 0 after a signal; readiness told in systemd's way once partitions are
assigned and the lookups have caught up. No port is opened. The history sink is an app and a group of its own,
so that a history that is down holds nothing else up.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import faust
from faust.types import TP
from sdnotify import SystemdNotifier

from schemas import codec
from schemas.topics import CLOCK_FITS, MAX_MESSAGE_BYTES, PROBES
from streams.agents import map as map_agent
from streams.agents import solve as solve_agent
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.agents.watchdog import watch
from streams.settings import StreamSettings

__all__ = ["build_app", "main"]

log = logging.getLogger(__name__)

REPEAT_S: Final = 10.0
"""s before the same line of a client library is printed again."""
EXIT_S: Final = 2.0
"""s that threads have to end after the worker stopped; what they hold is unacknowledged."""


def build_app(name: str, settings: StreamSettings, datadir: Path) -> faust.App:
    """Return a Faust app with this project's settings and no agents."""
    return faust.App(
        name,
        broker=[f"kafka://{address}" for address in settings.bootstrap.split(",")],
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


class _Service:
    """The stages of one worker process around their app."""

    def __init__(self, settings: StreamSettings, registry: codec.Registry | None, datadir: Path) -> None:
        self.settings = settings
        self.app = build_app(settings.group, settings, datadir)
        self.room = Room(self.app, settings, registry)
        self.room.reject = self._reject_soon
        self.map = map_agent.register(self.app, self.room) if "map" in settings.stages else None
        self.solve = solve_agent.register(self.app, self.room) if "solve" in settings.stages else None
        self.stages = [stage for stage in (self.map, self.solve) if stage is not None]
        self._notifier = SystemdNotifier()
        self._watching = False
        signals: Any = self.app
        signals.on_partitions_assigned.connect(self._assigned)
        signals.on_partitions_revoked.connect(self._revoked)
        signals.on_before_shutdown.connect(self._stopping)

    async def _assigned(self, app: Any, assigned: set[TP], *_: Any, **__: Any) -> None:
        self.room.tune_fetches()
        by_topic: dict[str, list[TP]] = {}
        for tp in sorted(assigned):
            by_topic.setdefault(tp.topic, []).append(tp)
        if self.map is not None:
            self.map.assigned(by_topic.get(PROBES.name, []))
        if self.solve is not None:
            self.solve.assigned(by_topic.get(CLOCK_FITS.name, []))
        self.room.task("readiness", self._tell_ready(len(assigned)))
        if not self._watching:
            self._watching = True
            self.room.task("watchdog", watch(self.room, self.stages))

    async def _revoked(self, app: Any, *_: Any, **__: Any) -> None:
        await asyncio.gather(*(stage.revoked() for stage in self.stages))

    async def _tell_ready(self, partitions: int) -> None:
        await self.room.views_caught_up()
        for stage in self.stages:
            await stage.ready()
        self._notifier.notify(f"STATUS={partitions} partitions")
        self._notifier.notify("READY=1")

    async def _stopping(self, app: Any, *_: Any, **__: Any) -> None:
        self._notifier.notify("STOPPING=1")
        await asyncio.gather(*(stage.revoked() for stage in self.stages))
        await self.room.stop()

    def _reject_soon(self, message: Any, error: Exception) -> None:
        async def send() -> None:
            await (await send_reject(self.room, message, message.value, "lookup", error))

        self.room.task("reject", send())


def main(settings: StreamSettings) -> int:
    """Run one worker in this process. Returns 0 after SIGTERM or SIGINT, 70 where it gave up."""
    _quiet_libraries()
    registry = _registry(settings)
    datadir = Path(tempfile.mkdtemp(prefix="fabrictime-stream-"))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        apps: list[faust.App] = []
        service: _Service | None = None
        if {"map", "solve"} & set(settings.stages):
            service = _Service(settings, registry, datadir)
            apps.append(service.app)
        if "sink" in settings.stages and settings.history is not None:
            sink = build_app(f"{settings.group}-sink", settings, datadir)
            importlib.import_module("streams.agents.sink").register(sink, settings.history, registry)
            apps.append(sink)
            if service is None:
                signals: Any = sink
                signals.on_partitions_assigned.connect(_ready_at_once)
        if not apps:
            raise ValueError(f"stages {settings.stages}: nothing to run, the sink needs history")
        _run(apps, loop)
        code = 70 if service is not None and service.room.failed is not None else 0
        _end_soon(code)
        return code
    finally:
        shutil.rmtree(datadir, ignore_errors=True)


class _Repeated(logging.Filter):
    """Lets a line of the client libraries through once in a while: a log that is away makes hundreds a
    second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to print the line."""
        if not record.name.startswith(("aiokafka", "faust", "mode")):
            return True
        key = (record.name, str(record.msg))
        if record.created - self._said.get(key, 0.0) < REPEAT_S:
            return False
        self._said[key] = record.created
        return True


def _quiet_libraries() -> None:
    for name in ("aiokafka", "faust", "mode"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Repeated())


def _end_soon(code: int) -> None:
    """See that the process ends with `code` even where a thread hangs, say in an insert into a dead
    history."""
    last = threading.Timer(EXIT_S, os._exit, (code,))
    last.daemon = True
    last.start()


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


def _registry(settings: StreamSettings) -> codec.Registry | None:
    """Return the schema registry of the settings; none where they name none."""
    if settings.schema_registry_url is None:
        return None
    found: codec.Registry = importlib.import_module("schemas.registry").ConfluentRegistry(
        settings.schema_registry_url
    )
    return found
