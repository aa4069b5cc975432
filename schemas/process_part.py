"""A part of a process: its stop request and its service notifier. Most processes are one part."""

from __future__ import annotations

from typing import NamedTuple

from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest


class Part(NamedTuple):
    """The connections of a service to its process."""

    stop: StopRequest
    notifier: ServiceNotifier


def own_process() -> Part:
    """Return the part that is the whole process: signals stop it, if this is the main thread."""
    stop = StopRequest()
    stop.set_on_signals()
    return Part(stop, ServiceNotifier())
