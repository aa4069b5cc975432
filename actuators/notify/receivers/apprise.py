"""Sends notifications to the services of the package apprise: mail, Slack, Teams, PagerDuty and others."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from actuators.notify.plan import Notification
from actuators.notify.receivers.base import DeliveryError, address_of
from actuators.notify.settings import ReceiverSettings
from actuators.notify.texts import Context, body, max_severity, title

ADVICE = "expected the package apprise: pip install 'fabrictime[notify]'"


class Apprise:
    """The services that apprise URLs name. A notification counts as accepted once all services took it."""

    def __init__(self, settings: ReceiverSettings) -> None:
        """Check the URLs. Raises ValueError that does not contain them."""
        try:
            self._apprise = importlib.import_module("apprise")
        except ImportError:
            raise ValueError(ADVICE) from None
        logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its lines contain URLs
        self._services: list[Any] = []
        for number, url in enumerate(address_of(settings).split(), 1):
            service = self._apprise.Apprise.instantiate(url)
            if service is None:
                raise ValueError(f"url {number}: apprise knows no such service")
            self._services.append(service)
        self._left: tuple[Notification, list[Any]] | None = None
        """The last notification, and the services that have not accepted it."""

    def send(self, notification: Notification, context: Context, now_ns: int) -> None:
        """Send a notification to the services that have not accepted it yet. Raises DeliveryError."""
        left = self._services
        if self._left is not None and self._left[0] == notification:
            left = self._left[1]
        heading, text = title(notification), body(notification, context)
        kind = self._type_of(notification)
        failed = []
        for service in left:
            if not service.notify(body=text, title=heading, notify_type=kind):
                failed.append(service)
        self._left = (notification, failed) if failed else None
        if failed:
            raise DeliveryError(f"{len(failed)} of {len(self._services)} services did not accept it")

    def close(self) -> None:
        """Do nothing: apprise keeps no connection."""

    def _type_of(self, notification: Notification) -> Any:
        types = self._apprise.NotifyType
        if not notification.firing:
            return types.SUCCESS
        severity = max_severity(notification.firing)
        return {"CRITICAL": types.FAILURE, "WARNING": types.WARNING}.get(severity, types.INFO)
