"""Runs the Faust apps of one worker in this process until SIGTERM or SIGINT.

The worker reports readiness to systemd once partitions are assigned, global tables have caught up and stages
are recovered. No port is opened.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import faust

from schemas.kafka.schema_log import LogSchemas
from schemas.metrics.sources import SOURCES
from streams.runtime.faust.compat import PromptWorker
from streams.runtime.faust.faust_app import build_app
from streams.runtime.faust.readiness import Readiness
from streams.runtime.faust.service import Service
from streams.runtime.operator import Stage
from streams.runtime.settings import StreamSettings

REPEAT_S: Final = 10.0
"""Interval within which a repeated log line of a client library is not printed again, s."""
EXIT_S: Final = 2.0
"""Time that threads have to end after the worker stopped, s; their messages are unacknowledged."""


class AppStages(NamedTuple):
    """The stages of one Faust app, and the settings of its consumer group."""

    suffix: str
    """Suffix of the name of the app's consumer group."""
    stages: Sequence[Stage]
    gather_ms: int
    """Time for which the broker collects messages, ms; if 0, fetches return at the first message."""


def run(settings: StreamSettings, apps: Sequence[AppStages]) -> int:
    """Run one worker in this process; return the exit code: 0 after SIGTERM or SIGINT, 70 after an abort."""
    if not apps:
        raise ValueError(f"stages {settings.stages}: nothing to run, the sink needs history")
    _quiet_libraries()
    registry = settings.kafka.registry()
    if isinstance(registry, LogSchemas):
        SOURCES.add(registry.samples)
    datadir = Path(tempfile.mkdtemp(prefix="fabrictime-stream-"))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        readiness = Readiness()
        services: list[Service] = []
        for suffix, stages, gather_ms in apps:
            app = build_app(settings.group + suffix, settings, datadir)
            services.append(Service(app, stages, settings, registry, readiness, gather_ms))
        gc.freeze()  # modules and schemas live as long as the process: collections need not visit them
        _run([service.app for service in services], loop)
        code = 70 if any(service.context.failed is not None for service in services) else 0
        _end_soon(code)
        return code
    finally:
        shutil.rmtree(datadir, ignore_errors=True)


class _Repeated(logging.Filter):
    """Suppresses repeated log lines of the client libraries: a missing broker causes hundreds a second."""

    def __init__(self) -> None:
        super().__init__()
        self._printed_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a log line that repeats an earlier one too soon, else True."""
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
    """Make the process exit with `code` soon, even if a thread hangs, for instance in an insert."""
    last = threading.Timer(EXIT_S, os._exit, (code,))
    last.daemon = True
    last.start()


def _run(apps: list[faust.App], loop: asyncio.AbstractEventLoop) -> None:
    worker = PromptWorker(
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
