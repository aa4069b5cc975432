"""Sends alerts to Prometheus Alertmanager, by its API v2.

An active alert is transmitted again before its `endsAt`, which is four intervals ahead, as in Prometheus. If
the notifier stays down for longer, Alertmanager resolves the alert. Silences and maintenance windows of
`fabric.alert-notes` become silences of Alertmanager, so that it withholds these alerts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from actuators.notify.notes import Silence
from actuators.notify.plan import Notification
from actuators.notify.receivers.alert_json import alert_json, labels_of, time_json
from actuators.notify.receivers.base import DeliveryError, JsonClient
from actuators.notify.settings import ReceiverSettings
from actuators.notify.texts import Context, is_over
from schemas.records import Alert

API: Final = "/api/v2"
RESENDS_VALID: Final = 4
"""Transmissions that may be lost before Alertmanager takes an alert for resolved."""
CREATOR: Final = "fabrictime"
MATCHED: Final = ("alertname", "shard", "subject")
"""Labels by which a silence selects an alert."""

SilenceKey = tuple[tuple[str, str], ...]
"""Names and values of the labels by which a silence selects an alert."""


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A silence of Alertmanager; `until_ns` is 0 if a former process created it."""

    name: str
    until_ns: int


class Alertmanager:
    """An Alertmanager server. `resend_ns`: time between two transmissions of an active alert."""

    def __init__(self, settings: ReceiverSettings, resend_ns: int) -> None:
        """Check the configured address. Raises ValueError."""
        self._client = JsonClient(settings)
        self._valid_ns = RESENDS_VALID * resend_ns
        self._silences: dict[SilenceKey, _Mirrored] = {}
        """The silences that this process created or read."""
        self._has_read_silences = False

    def send(self, notification: Notification, context: Context, now_ns: int) -> None:
        """Transmit the alerts of a notification. Raises DeliveryError."""
        alerts = [*notification.firing, *notification.resolved]
        if notification.is_reminder:
            self._has_read_silences = False  # Alertmanager may have lost them in a restart
        for alert in alerts:
            self._match_silence(alert, context, now_ns)
        content = [alert_json(alert, context, now_ns, self._valid_ns) for alert in alerts]
        try:
            self._client.request("POST", f"{self._client.path}{API}/alerts", content)
        except DeliveryError as error:
            if not error.is_final or len(content) == 1:
                raise
            self._send_singly(content)

    def _send_singly(self, content: list[dict[str, Any]]) -> None:
        """Transmit alerts one by one, because Alertmanager refuses them together.

        Raises DeliveryError for the last refused alert, after the other alerts were sent.
        """
        refusal: DeliveryError | None = None
        for one in content:
            try:
                self._client.request("POST", f"{self._client.path}{API}/alerts", [one])
            except DeliveryError as error:
                if not error.is_final:
                    raise
                refusal = error
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _match_silence(self, alert: Alert, context: Context, now_ns: int) -> None:
        """Create or expire Alertmanager's silence of an alert, so that it equals the one in our notes."""
        if not self._has_read_silences:
            self._read_silences()
        key = _silence_key(alert, context)
        silence = None if is_over(alert) else context.notes.silence_at(alert, now_ns)
        if silence is None:
            if key in self._silences:
                self._expire(self._silences[key].name)
                del self._silences[key]
        elif key not in self._silences or self._silences[key].until_ns != silence.until_ns:
            self._create(key, silence, now_ns)

    def _read_silences(self) -> None:
        rows = self._client.request("GET", f"{self._client.path}{API}/silences") or []
        until_ns = {one.name: one.until_ns for one in self._silences.values()}
        self._silences = {}
        for row in rows:
            if row.get("createdBy") == CREATOR and row.get("status", {}).get("state") in (
                "active",
                "pending",
            ):
                key = tuple(sorted((matcher["name"], matcher["value"]) for matcher in row["matchers"]))
                self._silences[key] = _Mirrored(row["id"], until_ns.get(row["id"], 0))
        self._has_read_silences = True

    def _create(self, key: SilenceKey, silence: Silence, now_ns: int) -> None:
        former = self._silences.get(key)
        self._has_read_silences = False  # until Alertmanager has accepted: it may not know the former one
        matchers = [{"name": name, "value": text, "isRegex": False, "isEqual": True} for name, text in key]
        comments = silence.note["comments"]
        answer = self._client.request(
            "POST",
            f"{self._client.path}{API}/silences",
            {
                "matchers": matchers,
                "startsAt": time_json(now_ns),
                "endsAt": time_json(silence.until_ns),
                "createdBy": CREATOR,
                "comment": f"{silence.note['author']}: {comments[-1]['text'] if comments else 'no comment'}",
                **({"id": former.name} if former else {}),
            },
        )
        self._silences[key] = _Mirrored((answer or {}).get("silenceID", ""), silence.until_ns)
        self._has_read_silences = True

    def _expire(self, name: str) -> None:
        try:
            self._client.request("DELETE", f"{self._client.path}{API}/silence/{name}")
        except DeliveryError as error:
            if not error.is_final and "404" not in str(error):
                raise


def _silence_key(alert: Alert, context: Context) -> SilenceKey:
    labels = labels_of(alert, context)
    return tuple((name, labels[name]) for name in MATCHED)
