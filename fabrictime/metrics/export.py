"""Starts the metric exports of a process: a socket for its supervisor, or an HTTP endpoint and OTLP push."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictime.metrics.processes import SOCKET_VARIABLE, serve_socket
from fabrictime.metrics.settings import DEFAULT_PORT, MetricsSettings
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES

if TYPE_CHECKING:
    from fabrictime.metrics.exposition import Endpoint

log = logging.getLogger(__name__)

Collect = Callable[[], Iterable[Sample]]


def release() -> str:
    """Return the installed version of fabrictime."""
    try:
        return version("fabrictime")
    except PackageNotFoundError:
        return "unknown"


def build_samples() -> list[Sample]:
    """Return the metric sample with the installed version of fabrictime."""
    return [Sample("fabrictime_build_info", 1, (release(),))]


class Exports:
    """The running metric exports of one process, until `close`."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self.url: str | None = None
        """Address of the endpoint."""

    def open(self, settings: MetricsSettings, collect: Collect) -> None:
        """Start the endpoint, and the push if the settings have an address. A failure is logged, not
        raised.
        """
        try:
            self._open(settings, collect)
        except (OSError, ModuleNotFoundError) as error:
            log.error("no metrics: %s", error)

    def _open(self, settings: MetricsSettings, collect: Collect) -> None:
        endpoint = _listen(settings, collect)
        self._closing.callback(endpoint.close)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{endpoint.port}/metrics"
        if settings.otlp_endpoint is not None:
            from fabrictime.metrics.otlp import OtlpPush

            push = OtlpPush(settings.otlp_endpoint, settings.otlp_interval_s, collect, release())
            self._closing.callback(push.close)

    def open_socket(self, path: Path) -> None:
        """Answer the supervisor's requests for metrics on the socket `path`. Raises OSError."""
        self._closing.callback(serve_socket(path).close)

    def close_also(self, close: Callable[[], None]) -> None:
        """Add a function that `close` calls after the endpoint is closed."""
        self._closing.callback(close)

    def close(self) -> None:
        """Close the endpoint and the socket, and end the push."""
        self._closing.close()


def _listen(settings: MetricsSettings, collect: Collect) -> Endpoint:
    """Return an endpoint on the configured port; without one, on the default port or any free port."""
    from fabrictime.metrics.exposition import Endpoint  # loads prometheus_client, which no child needs

    if settings.port is not None:
        return Endpoint(settings.host, settings.port, collect)
    try:
        return Endpoint(settings.host, DEFAULT_PORT, collect)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return Endpoint(settings.host, 0, collect)


def start(settings: MetricsSettings) -> Exports:
    """Start the metric exports of a service. A failure is logged; the service works without the exports."""
    exports = Exports()
    if not settings.enabled:
        return exports
    SOURCES.details = settings.details
    path = os.environ.get(SOCKET_VARIABLE)
    if path is None:
        SOURCES.add(build_samples)
        exports.open(settings, SOURCES.collect)
        log.info("metrics on %s", exports.url)
        return exports
    try:
        exports.open_socket(Path(path))
    except OSError as error:
        log.error("no metrics: %s", error)
    return exports
