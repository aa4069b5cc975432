"""Delivers the alerts of the log to one receiver: reads, plans, sends, and then commits.

Positions are committed only after the receiver has accepted a notification. If the process dies in between,
its successor sends the notification once more, with the same identity. If a receiver does not answer, sending
is repeated after growing pauses; meanwhile changes are merged, and nothing is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from actuators.notify.actions import ActionSummary
from actuators.notify.notes import NoteIndex
from actuators.notify.plan import GroupPlan, Notification, Plan, PlanRules, SyncPlan
from actuators.notify.positions import Positions, decode_mark
from actuators.notify.receivers.base import DeliveryError, Receiver
from actuators.notify.settings import NotifySettings
from actuators.notify.texts import Context
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, LogUnavailable, Start, TopicReader, since
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import AlertState, Severity
from schemas.topics import ACTIONS, ALERT_NOTES, ALERTS, DECISIONS, INVENTORY, TOPICS, Topic
from schemas.unexpected import DATA_ERRORS

_log = logging.getLogger(__name__)

NS_PER_S: Final = 1_000_000_000
FIRST_RETRY_S: Final = 0.2
FINAL_ATTEMPTS: Final = 5
"""Attempts after which a notification is given up that the receiver refuses for its content."""
COMMIT_S: Final = 5.0
"""Time between two commits of the time up to which silences and reminders are handled, s."""
POLL_S: Final = 0.05
RECENT_NS: Final = 3600 * NS_PER_S
"""Actions of this time before the start are read, for the texts."""


@dataclass(slots=True)
class DeliveryCounters:
    """Counts of notifications since the start of a delivery, and its present fault."""

    accepted: int = 0
    retries: int = 0
    refused: int = 0
    """Notifications given up because the receiver refuses their content."""
    unreadable: int = 0
    waiting: int = 0
    fault: str = ""
    """Why the receiver or the log does not work, in one line; empty if both do."""


class Delivery:
    """Delivers the alerts of the log to one receiver."""

    def __init__(
        self,
        name: str,
        settings: NotifySettings,
        receiver: Receiver,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name, self.counters = name, DeliveryCounters()
        self.is_ready = False
        self._settings, self._receiver, self._now_ns = settings, receiver, now_ns
        self._registry = settings.kafka.registry()
        self._rules = rules_of(settings, name)
        self._reader: TopicReader | None = None
        self._reset()
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the counters of notifications as metrics."""
        counters = self.counters
        yield Sample("fabrictime_notifications_total", counters.accepted, ("accepted",))
        yield Sample("fabrictime_notifications_total", counters.retries, ("retried",))
        yield Sample("fabrictime_notifications_total", counters.refused, ("refused",))
        yield Sample("fabrictime_notifications_waiting", counters.waiting)
        yield Sample("fabrictime_records_rejected_total", counters.unreadable)

    def _reset(self) -> None:
        self._notes, self._actions = NoteIndex(), ActionSummary()
        self._positions = Positions({})
        self._plan: Plan = self._make_plan(0)
        self._attempts, self._retry_s, self._pause_s = 0, 0.0, FIRST_RETRY_S
        self._commit_s = 0.0
        settings = self._settings
        self._context = Context(
            self._notes, self._actions, settings.runbook_url, settings.page_url, settings.labels
        )

    def _make_plan(self, handled_ns: int) -> Plan:
        if self._settings.receivers[self.name].type == "alertmanager":
            return SyncPlan(self._rules, self._positions)
        return GroupPlan(self._rules, self._notes, self._positions, handled_ns)

    # --------------------------------------------------------------------------------------- the loop

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Deliver until `is_stopping` returns True. A failure of the log is reported, then retried."""
        pause_s = FIRST_RETRY_S
        try:
            while not is_stopping():
                try:
                    if self._reader is None:
                        self._start()
                        pause_s = FIRST_RETRY_S
                    self.step()
                except LogUnavailable as error:
                    self._set_fault(str(error))
                    self._close_reader()
                    _wait(pause_s, is_stopping)
                    pause_s = min(2 * pause_s, self._settings.retry_max_s)
        finally:
            self._close_reader()
            self._receiver.close()

    def step(self) -> None:
        """Read the log for a short time, send due notifications, and commit. Raises LogUnavailable."""
        reader = self._reader
        if reader is None:
            raise LogUnavailable("the log is not connected")
        for message in reader.poll(POLL_S, at_once=True):
            self._take(message)
        while time.monotonic() >= self._retry_s and (notification := self._plan.next(self._now_ns())):
            self._send(notification)
        self.counters.waiting = self._plan.waiting()
        self._commit(reader)

    def _start(self) -> None:
        """Connect, read the log to its end, and continue where a former process stopped."""
        self._reset()
        starts: dict[Topic, Start] = {
            ALERTS: BEGINNING,
            ALERT_NOTES: BEGINNING,
            INVENTORY: BEGINNING,
            DECISIONS: since(self._now_ns() - RECENT_NS),
            ACTIONS: since(self._now_ns() - RECENT_NS),
        }
        group = f"{self._settings.group}-{self.name}"
        self._reader = reader = TopicReader.open(self._settings.kafka, starts, group=group)
        stored = reader.committed_metadata(ALERTS)
        marks = {place: decode_mark(*one) for place, one in stored.items()}
        self._positions = Positions(marks)
        handled_ns = min((mark.handled_ns for mark in marks.values()), default=0)
        self._plan = self._make_plan(handled_ns or self._now_ns())
        alerts: list[Message] = []
        for message in reader.read_to_end():
            if message.topic == ALERTS.name:
                alerts.append(message)
            else:
                self._take(message)
        alerts.sort()
        self._positions.add_places(place for place in reader.assigned if place[0] == ALERTS.name)
        self._restore(alerts, is_first=not marks)
        self._commit(reader)  # a successor of a first process is none: it continues from here
        self._set_fault("")
        self.is_ready = True

    def _restore(self, messages: list[Message], *, is_first: bool) -> None:
        """Take the log's alerts: those before the committed positions as handled, later alerts as new.

        A first process takes the active alerts as new, and alerts that are over as handled.
        """
        records = [(message, alert) for message in messages if (alert := self._decoded(message)) is not None]
        last = {alert["alert_id"]: message for message, alert in records}
        for message, alert in records:
            place = message.topic, message.partition
            is_old = is_first and (
                alert["state"] == AlertState.CLEARED or last[alert["alert_id"]] is not message
            )
            if is_old:
                self._positions.settle([(place, message.offset)])
            elif self._positions.is_news(place, message.offset):
                self._plan.take(alert, (place, message.offset), message.append_ns)
            else:
                self._plan.restore(alert, message.append_ns)

    def _take(self, message: Message) -> None:
        """Process a message of any topic."""
        record = self._decoded(message)
        if message.topic == ALERT_NOTES.name:
            self._notes.take(message.key, record)
            self._plan.take_note()
        elif record is None:
            return
        elif message.topic == ALERTS.name:
            token = (message.topic, message.partition), message.offset
            self._plan.take(record, token, message.append_ns)
        elif message.topic == INVENTORY.name:
            self._notes.take_rack(record["host"], record["rack"])
        elif message.topic == DECISIONS.name:
            self._actions.take_decision(record)
        elif message.topic == ACTIONS.name:
            self._actions.take_report(record)

    def _decoded(self, message: Message) -> Any:
        """Return the record of a message; None for a tombstone and for a message that cannot be decoded."""
        if message.value is None:
            return None
        try:
            return message.decoded(TOPICS[message.topic], self._registry)
        except codec.BadRecord as error:
            self.counters.unreadable += 1
            _log.warning(
                "%s: %s %d/%d: %s", self.name, message.topic, message.partition, message.offset, error
            )
            return None

    # --------------------------------------------------------------------------------------- sending

    def _send(self, notification: Notification) -> None:
        try:
            self._receiver.send(notification, self._context, self._now_ns())
        except DeliveryError as error:
            self._fail(notification, error)
            return
        except DATA_ERRORS as error:  # one alert that cannot be shown must not stop the others
            _log.exception("%s: a notification cannot be made", self.name)
            self._fail(notification, DeliveryError(f"failed: {type(error).__name__}", is_final=True))
            return
        self._log_sent(notification)
        self.counters.accepted += 1
        self._finish(notification)
        self._set_fault("")

    def _finish(self, notification: Notification) -> None:
        self._plan.accepted(notification, self._now_ns())
        self._attempts, self._retry_s, self._pause_s = 0, 0.0, FIRST_RETRY_S
        if notification.settles and self._reader is not None:
            self._commit(self._reader, at_once=True)

    def _fail(self, notification: Notification, error: DeliveryError) -> None:
        """Retry a notification later; give it up if the receiver refuses its content for good."""
        self._attempts += 1
        self._set_fault(f"receiver {self.name}: {error}")
        if error.is_final and self._attempts >= FINAL_ATTEMPTS:
            names = ", ".join(name for name, _ in notification.news[:5])
            _log.error("%s: given up, the receiver refuses it: %s: %s", self.name, error, names)
            self.counters.refused += 1
            self._finish(notification)
            return
        self.counters.retries += 1
        self._retry_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._settings.retry_max_s)

    def _log_sent(self, notification: Notification) -> None:
        for alert_id, state in notification.news:
            _log.info("%s: sent %s %s", self.name, state, alert_id)

    def _commit(self, reader: TopicReader, *, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if not at_once and now_s < self._commit_s:
            return
        commits = self._positions.commits(self._plan.handled_ns(self._now_ns()), everywhere=not at_once)
        if commits:
            offsets = {place: offset for place, (offset, _) in commits.items()}
            metadata = {place: text for place, (_, text) in commits.items()}
            reader.commit(offsets, wait=True, metadata=metadata)
            self._positions.committed()
        if not at_once:
            self._commit_s = now_s + COMMIT_S

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self.counters.fault:
            _log.warning("%s: %s", self.name, fault)
        self.counters.fault = fault

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def rules_of(settings: NotifySettings, name: str) -> PlanRules:
    """Return the times and limits for a receiver's plan."""
    return PlanRules(
        group_wait_ns=round(settings.group_wait_s * NS_PER_S),
        group_interval_ns=round(settings.group_interval_s * NS_PER_S),
        repeat_interval_ns=round(settings.repeat_interval_s * NS_PER_S),
        max_per_minute=settings.max_per_minute,
        resend_ns=round(settings.resend_s * NS_PER_S),
        min_severity=Severity(settings.receivers[name].min_severity),
    )


def _wait(seconds: float, is_stopping: Callable[[], bool]) -> None:
    end_s = time.monotonic() + seconds
    while not is_stopping() and time.monotonic() < end_s:
        time.sleep(min(POLL_S, seconds))
