"""Sends notifications in the JSON format of Alertmanager's webhooks, version 4.

Programs that read Alertmanager's webhook can read these notifications too. A notification lists the group's
active alerts and the alerts that it resolves; `status` is firing while any alert is active.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from actuators.notify.plan import Notification
from actuators.notify.receivers.alert_json import alert_json, alert_name, labels_of
from actuators.notify.receivers.base import JsonClient
from actuators.notify.settings import ReceiverSettings
from actuators.notify.texts import Context, body, is_over, title
from schemas.records import Alert

MAX_LISTED: Final = 256
NO_END: Final = "0001-01-01T00:00:00Z"
"""The end of an active alert in the webhook format."""


class Webhook:
    """An HTTP server that accepts Alertmanager's webhook format."""

    def __init__(self, settings: ReceiverSettings, name: str) -> None:
        """Check the configured address. Raises ValueError."""
        self._client, self._name = JsonClient(settings), name

    def send(self, notification: Notification, context: Context, now_ns: int) -> None:
        """Send a notification to the server. Raises DeliveryError."""
        content = webhook_json(notification, context, self._name, now_ns)
        self._client.request("POST", f"{self._client.path or '/'}{self._client.query}", content)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def webhook_json(notification: Notification, context: Context, receiver: str, now_ns: int) -> dict[str, Any]:
    """Return a notification in Alertmanager's webhook format."""
    alerts = [*notification.resolved, *notification.firing]
    rows = [_alert_row(alert, context, now_ns) for alert in alerts[:MAX_LISTED]]
    group_labels = {"alertname": alert_name(alerts[0]["kind"]), "shard": alerts[0]["shard"] or "default"}
    return {
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{group_labels["alertname"]}", shard="{group_labels["shard"]}"}}',
        "truncatedAlerts": len(alerts) - len(rows),
        "status": "firing" if notification.firing else "resolved",
        "receiver": receiver,
        "groupLabels": group_labels,
        "commonLabels": _common([row["labels"] for row in rows]),
        "commonAnnotations": {
            **_common([row["annotations"] for row in rows]),
            "title": title(notification),
            "message": body(notification, context),
        },
        "externalURL": context.page_url,
        "alerts": rows,
    }


def fingerprint(labels: dict[str, str]) -> str:
    """Return a stable identity of a set of labels, 16 hexadecimal digits."""
    text = "\xff".join(f"{name}\xff{labels[name]}" for name in sorted(labels))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _alert_row(alert: Alert, context: Context, now_ns: int) -> dict[str, Any]:
    row = alert_json(alert, context, now_ns, 0)
    labels = labels_of(alert, context)
    end = row["endsAt"] if is_over(alert) else NO_END
    status = "resolved" if is_over(alert) else "firing"
    return {"status": status, **row, "endsAt": end, "fingerprint": fingerprint(labels)}


def _common(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return the labels or annotations that all rows share."""
    first = rows[0] if rows else {}
    return {name: text for name, text in first.items() if all(row.get(name) == text for row in rows)}
