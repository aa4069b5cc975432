"""Connects a service to its process: stop request and service notifier. Most processes run one service."""

from __future__ import annotations

from typing import NamedTuple

from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest


class Part(NamedTuple):
    """A service's connections to its process: the request to stop, and the service manager's notifier."""

    stop: StopRequest
    notifier: ServiceNotifier


def own_process() -> Part:
    """Return the `Part` of a process that runs one service; SIGTERM and SIGINT stop it in the main thread."""
    stop = StopRequest()
    stop.set_on_signals()
    return Part(stop, ServiceNotifier())
