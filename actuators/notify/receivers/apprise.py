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
    """The notification service behind a URL of the package apprise."""

    def __init__(self, settings: ReceiverSettings) -> None:
        """Check the URL. Raises ValueError, with a text that does not contain the URL."""
        try:
            self._apprise = importlib.import_module("apprise")
        except ImportError:
            raise ValueError(ADVICE) from None
        logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its lines contain URLs
        self._service: Any = self._apprise.Apprise.instantiate(address_of(settings))
        if self._service is None:
            raise ValueError("url: apprise knows no such service")

    def send(self, notification: Notification, context: Context, now_ns: int) -> None:
        """Send a notification to the service. Raises DeliveryError."""
        heading, text = title(notification), body(notification, context)
        if not self._service.notify(body=text, title=heading, notify_type=self._type_of(notification)):
            raise DeliveryError("the service did not accept it")

    def close(self) -> None:
        """Do nothing: apprise keeps no connection."""

    def _type_of(self, notification: Notification) -> Any:
        types = self._apprise.NotifyType
        if not notification.firing:
            return types.SUCCESS
        severity = max_severity(notification.firing)
        return {"CRITICAL": types.FAILURE, "WARNING": types.WARNING}.get(severity, types.INFO)
