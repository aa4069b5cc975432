"""The notifier: one thread for each receiver, so that a receiver that does not answer delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from actuators.notify.delivery import Delivery
from actuators.notify.receivers.alertmanager import Alertmanager
from actuators.notify.receivers.apprise import Apprise
from actuators.notify.receivers.base import Receiver
from actuators.notify.receivers.webhook import Webhook
from actuators.notify.settings import NotifySettings
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest

_log = logging.getLogger(__name__)

_STATUS_S: Final = 1.0
_JOIN_S: Final = 3.0


def make_receiver(name: str, settings: NotifySettings) -> Receiver:
    """Return a receiver. Raises ValueError that names the receiver but not its address."""
    own = settings.receivers[name]
    try:
        if own.type == "alertmanager":
            return Alertmanager(own, round(settings.resend_s * 1e9))
        return Webhook(own, name) if own.type == "webhook" else Apprise(own)
    except ValueError as error:
        raise ValueError(f"notify.receivers.{name}: {error}") from None


def main(settings: NotifySettings) -> int:
    """Send alerts until SIGTERM or SIGINT. Return the exit code: 0 after a stop, 2 if it cannot start."""
    stopping = StopRequest()
    stopping.set_on_signals()
    if not settings.receivers:
        _log.error("notify: expected a receiver, [notify.receivers.NAME]")
        return 2
    try:
        deliveries = [
            Delivery(name, settings, make_receiver(name, settings)) for name in sorted(settings.receivers)
        ]
    except ValueError as error:
        _log.error("%s", error)
        return 2
    threads = [
        threading.Thread(target=delivery.run, args=(stopping.is_set,), name=delivery.name, daemon=True)
        for delivery in deliveries
    ]
    for thread in threads:
        thread.start()
    notify = ServiceNotifier()
    try:
        return _watch(deliveries, threads, notify, stopping)
    finally:
        notify.notify("STOPPING=1")
        for thread in threads:
            thread.join(_JOIN_S)


def _watch(
    deliveries: Sequence[Delivery],
    threads: Sequence[threading.Thread],
    notify: ServiceNotifier,
    stopping: StopRequest,
) -> int:
    """Report state and faults until stopped. Return 0, or 1 to be restarted because a thread ended."""
    is_ready, fault = False, ""
    status_s = 0.0
    while not stopping.is_set():
        if not all(thread.is_alive() for thread in threads):
            return 0 if stopping.is_set() else 1
        if not is_ready and all(delivery.is_ready for delivery in deliveries):
            is_ready = True
            _log.info("notifies %s", ", ".join(delivery.name for delivery in deliveries))
            notify.notify("READY=1")
        present_fault = "; ".join(d.counters.fault for d in deliveries if d.counters.fault)
        if present_fault != fault:
            fault = present_fault
            notify.notify(f"X_FAULT={fault}")
        if time.monotonic() >= status_s:
            status_s = time.monotonic() + _STATUS_S
            notify.notify(f"STATUS={'; '.join(status_text(d) for d in deliveries)}")
            notify.notify("WATCHDOG=1")
        stopping.wait(0.1)
    return 0


def status_text(delivery: Delivery) -> str:
    """Return the counters of a delivery in one line."""
    counters = delivery.counters
    return (
        f"{delivery.name}: {counters.accepted} accepted, {counters.waiting} waiting, "
        f"{counters.retries} retries, {counters.refused} refused"
    )
