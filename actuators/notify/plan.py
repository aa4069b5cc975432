"""Plans the notifications of a receiver and their times.

Both plans are pure: times are arguments, and nothing is sent here.

`GroupPlan` serves receivers that people read. It groups alerts by kind and shard, waits for more alerts of
the same cause, repeats unacknowledged alerts, and respects silences. `SyncPlan` serves Alertmanager, which
does all this itself: it transmits each record at once, and all active alerts at even intervals.

The state follows from the log, the committed positions and the time up to which silences and reminders were
handled. A successor computes it again, so no file is needed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, Protocol

from actuators.notify.notes import NoteIndex
from actuators.notify.positions import Positions, Token
from schemas.records import Alert, AlertKind, AlertState, Severity

NS_PER_S: Final = 1_000_000_000
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
MAX_ALERTS: Final = 64
"""Alerts in one transmission to Alertmanager, and in one notification."""
MAX_CLEARED: Final = 4096
"""Number of cleared alerts whose last update is kept, to recognise records that are published twice."""
RANKED: Final = 64
"""Number of due groups that are ranked at once."""
MIN_GROUPS: Final = 256
"""Number of groups from which on those without alerts are forgotten."""
RESOLVED_NS: Final = 900 * NS_PER_S
"""Time for which a cleared alert is transmitted to Alertmanager again, as Prometheus does it."""

GroupKey = tuple[AlertKind, str]
"""Kind and shard: the alerts of one cause."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Times and limits of a receiver's notifications."""

    group_wait_ns: int
    group_interval_ns: int
    repeat_interval_ns: int
    max_per_minute: int
    resend_ns: int
    min_severity: Severity = Severity.INFO

    def is_wanted(self, alert: Alert) -> bool:
        """Return whether an alert is severe enough for this receiver."""
        return SEVERITIES.index(alert["severity"]) >= SEVERITIES.index(self.min_severity)


@dataclass(frozen=True, slots=True)
class Notification:
    """Alerts to send together. `firing` and `resolved` hold new alerts and all active ones of the group.

    `settles`: messages that are handled once the receiver has accepted the notification.
    """

    key: GroupKey | None
    firing: tuple[Alert, ...]
    resolved: tuple[Alert, ...]
    news: tuple[tuple[str, AlertState], ...]
    """Id and state of the alerts that the receiver does not know yet."""
    settles: tuple[Token, ...] = ()
    is_reminder: bool = False


class Plan(Protocol):
    """The interface of `GroupPlan` and `SyncPlan`: decides which alerts to send, and when."""

    def restore(self, alert: Alert, arrived_ns: int) -> None:
        """Add an alert record that a former process has handled already."""

    def take(self, alert: Alert, token: Token, arrived_ns: int) -> None:
        """Add a new alert record; the plan settles its token at once, or once the alert is sent."""

    def take_note(self) -> None:
        """Note that the notes of operators have changed."""

    def next(self, now_ns: int) -> Notification | None:
        """Return the notification that is due at `now_ns`; None if none is due."""

    def accepted(self, notification: Notification, now_ns: int) -> None:
        """Note that the receiver has accepted a notification."""

    def handled_ns(self, now_ns: int) -> int:
        """Return the time up to which silences and reminders are handled."""

    def waiting(self) -> int:
        """Return the number of alerts that wait for the receiver."""


@dataclass(slots=True)
class _Active:
    """An active alert. `is_sent`: the receiver has accepted a notification of it."""

    alert: Alert
    arrived_ns: int
    is_sent: bool


@dataclass(slots=True)
class _Pending:
    """A change of one alert that the receiver has not accepted yet."""

    alert: Alert
    since_ns: int
    tokens: list[Token] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """The pending changes and the last notification of the alerts of one cause."""

    pending: dict[str, _Pending] = field(default_factory=dict)
    active: dict[str, _Active] = field(default_factory=dict)
    sent_ns: int = 0


class GroupPlan:
    """The plan for a receiver that people read. `handled_ns`: the committed time; 0 if there is none."""

    def __init__(self, rules: PlanRules, notes: NoteIndex, positions: Positions, handled_ns: int) -> None:
        self._rules, self._notes, self._positions = rules, notes, positions
        self._handled_ns = handled_ns
        self._start_ns = handled_ns
        self._active: dict[str, _Active] = {}
        self._cleared: OrderedDict[str, int] = OrderedDict()
        self._groups: dict[GroupKey, _Group] = {}
        self._withheld: dict[str, _Active] = {}
        """The active alerts that a silence withholds."""
        self._unsilenced: dict[str, int] = {}
        """Maps id of a pending alert that a silence withheld to the end of that silence."""
        self._with_news: dict[GroupKey, _Group] = {}
        """The groups with pending news."""
        self._queue: deque[GroupKey] = deque()
        """Groups that are due, the most urgent first."""
        self._reminders_at_ns = 0
        self._groups_max = MIN_GROUPS
        self._sent_ns: deque[int] = deque()
        """Times of the notifications of the last minute."""

    # --------------------------------------------------------------------------------------- records

    def restore(self, alert: Alert, arrived_ns: int) -> None:
        """Add a record that a former process handled: its alert was sent, unless a silence prevented it."""
        if alert["state"] == AlertState.CLEARED:
            self._close(alert)
            return
        active = self._active.get(alert["alert_id"])
        if not self._rules.is_wanted(alert):
            return
        if active is not None:
            active.alert = alert
            return
        is_sent = not self._is_silent(alert, arrived_ns, self._start_ns)
        active = self._open(alert, arrived_ns, is_sent=is_sent)
        if not is_sent:
            self._withheld[alert["alert_id"]] = active

    def take(self, alert: Alert, token: Token, arrived_ns: int) -> None:
        """Add a new alert record to its group; settle its token at once if no notification is needed."""
        self._positions.open(token)
        is_wanted = alert["alert_id"] in self._active or self._rules.is_wanted(alert)
        if not is_wanted or self._is_repeated(alert):
            self._positions.settle([token])
        elif alert["state"] == AlertState.CLEARED:
            self._take_cleared(alert, token, arrived_ns)
        else:
            self._take_raised(alert, token, arrived_ns)

    def _is_repeated(self, alert: Alert) -> bool:
        active = self._active.get(alert["alert_id"])
        update = self._cleared.get(alert["alert_id"], -1) if active is None else active.alert["update"]
        return alert["update"] <= update

    def _take_raised(self, alert: Alert, token: Token, arrived_ns: int) -> None:
        active = self._active.get(alert["alert_id"])
        if active is None:
            active = self._open(alert, arrived_ns, is_sent=False)
        is_worse = SEVERITIES.index(alert["severity"]) > SEVERITIES.index(active.alert["severity"])
        active.alert = alert
        pending = self._pending_of(alert)
        if pending is not None:
            pending.alert = alert
            pending.tokens.append(token)
        elif self._is_silent(alert, active.arrived_ns, arrived_ns) or (active.is_sent and not is_worse):
            self._positions.settle([token])
            if not active.is_sent:
                self._withheld[alert["alert_id"]] = active
        else:
            self._withheld.pop(alert["alert_id"], None)  # its silence is over
            self._add(alert, arrived_ns, token)

    def _open(self, alert: Alert, arrived_ns: int, *, is_sent: bool) -> _Active:
        active = _Active(alert, arrived_ns, is_sent)
        self._active[alert["alert_id"]] = active
        self._groups.setdefault(key_of(alert), _Group()).active[alert["alert_id"]] = active
        return active

    def _take_cleared(self, alert: Alert, token: Token, arrived_ns: int) -> None:
        active = self._active.get(alert["alert_id"])
        pending = self._pending_of(alert)
        self._close(alert)
        if pending is not None:
            pending.alert = alert
            pending.tokens.append(token)
        elif active is not None and not active.is_sent:
            self._positions.settle([token])
        else:
            self._add(alert, arrived_ns, token)

    def _close(self, alert: Alert) -> None:
        active = self._active.pop(alert["alert_id"], None)
        self._withheld.pop(alert["alert_id"], None)
        if active is not None:
            key = key_of(alert)
            group = self._groups[key]
            del group.active[alert["alert_id"]]
            if not group.active and not group.pending and not group.sent_ns:
                del self._groups[key]
        self._cleared[alert["alert_id"]] = alert["update"]
        if len(self._cleared) > MAX_CLEARED:
            self._cleared.popitem(last=False)

    def _pending_of(self, alert: Alert) -> _Pending | None:
        group = self._groups.get(key_of(alert))
        return None if group is None else group.pending.get(alert["alert_id"])

    def _add(self, alert: Alert, since_ns: int, *tokens: Token) -> None:
        key = key_of(alert)
        group = self._groups.setdefault(key, _Group())
        group.pending[alert["alert_id"]] = _Pending(alert, since_ns, list(tokens))
        self._with_news[key] = group

    def _is_silent(self, alert: Alert, arrived_ns: int, at_ns: int) -> bool:
        """Return whether an alert that arrived at `arrived_ns` is silent at `at_ns`.

        A silence does not affect alerts that arrived before it began.
        """
        silence = self._notes.silence_at(alert, at_ns)
        return silence is not None and silence.from_ns <= arrived_ns

    def take_note(self) -> None:
        """Do nothing: the plan reads notes when a notification is due."""

    # --------------------------------------------------------------------------------------- due

    def next(self, now_ns: int) -> Notification | None:
        """Return the most urgent notification that is due; None if none is due."""
        self._end_silences(now_ns)
        if not self._has_budget(now_ns):
            return None
        if (key := self._first_due(now_ns)) is not None:
            return self._notification(key, is_reminder=False)
        if (key := self._first_reminder(now_ns)) is not None:
            return self._notification(key, is_reminder=True)
        self._handled_ns = max(self._handled_ns, now_ns)
        return None

    def _first_due(self, now_ns: int) -> GroupKey | None:
        """Return the most urgent group with changes that are due; None if no group is due.

        Each call ranks only some groups, because a flood has thousands.
        """
        while self._queue:
            key = self._queue[0]
            if key in self._with_news and self._is_due(self._with_news[key], now_ns):
                return key
            self._queue.popleft()
        due = (
            (self._rank(key, group), key)
            for key, group in self._with_news.items()
            if self._is_due(group, now_ns)
        )
        self._queue.extend(key for _, key in nsmallest(RANKED, due))
        return self._queue[0] if self._queue else None

    def _end_silences(self, now_ns: int) -> None:
        """Enqueue the alerts that a silence withheld and that are no longer silent."""
        for name, active in list(self._withheld.items()):
            if not self._is_silent(active.alert, active.arrived_ns, now_ns):
                ends = [s.until_ns for s in self._notes.silences(active.alert) if s.until_ns <= now_ns]
                self._unsilenced[name] = max([*ends, self._start_ns])
                self._add(active.alert, self._unsilenced[name])
                del self._withheld[name]

    def _is_due(self, group: _Group, now_ns: int) -> bool:
        first_ns = min((pending.since_ns for pending in group.pending.values()), default=None)
        if first_ns is None:
            return False
        wait_ns = first_ns + self._rules.group_wait_ns
        return now_ns >= max(wait_ns, group.sent_ns + self._rules.group_interval_ns if group.sent_ns else 0)

    def _rank(self, key: GroupKey, group: _Group) -> tuple[int, int, GroupKey]:
        severity = max(SEVERITIES.index(p.alert["severity"]) for p in group.pending.values())
        return -severity, min(p.since_ns for p in group.pending.values()), key

    def _first_reminder(self, now_ns: int) -> GroupKey | None:
        """Return a group with an alert that is due to be sent again; search once a second."""
        if now_ns < self._reminders_at_ns:
            return None
        due = (key_of(a.alert) for a in self._active.values() if self._is_reminder_due(a, now_ns))
        first = next(due, None)
        if first is None:
            self._reminders_at_ns = now_ns + NS_PER_S
        return first

    def _is_reminder_due(self, active: _Active, now_ns: int) -> bool:
        """Return whether a reminder of an alert is due.

        Reminders are due at the arrival plus whole multiples of the interval, so a restart does not shift
        them.
        """
        if not active.is_sent:
            return False
        group = self._groups.get(key_of(active.alert))
        done_ns = max(self._start_ns, group.sent_ns if group else 0, active.arrived_ns)
        interval_ns = self._rules.repeat_interval_ns
        last_tick_ns = now_ns - (now_ns - active.arrived_ns) % interval_ns
        if last_tick_ns <= done_ns:
            return False
        silent = self._notes.silence_at(active.alert, now_ns) is not None
        return not silent and not self._notes.is_acknowledged(active.alert)

    def _has_budget(self, now_ns: int) -> bool:
        while self._sent_ns and self._sent_ns[0] <= now_ns - 60 * NS_PER_S:
            self._sent_ns.popleft()
        return len(self._sent_ns) < self._rules.max_per_minute

    def _notification(self, key: GroupKey, *, is_reminder: bool) -> Notification:
        group = self._groups.setdefault(key, _Group())
        pending = dict(list(group.pending.items())[:MAX_ALERTS])
        cleared = tuple(p.alert for p in pending.values() if p.alert["state"] == AlertState.CLEARED)
        raised = [p.alert for p in pending.values() if p.alert["state"] != AlertState.CLEARED]
        new_ids = {alert["alert_id"] for alert in raised}
        others = [
            active.alert
            for alert_id, active in group.active.items()
            if active.is_sent and alert_id not in new_ids
        ]
        return Notification(
            key,
            firing=(*raised, *others),
            resolved=cleared,
            news=tuple((p.alert["alert_id"], p.alert["state"]) for p in pending.values()),
            settles=tuple(token for p in pending.values() for token in p.tokens),
            is_reminder=is_reminder,
        )

    # --------------------------------------------------------------------------------------- results

    def accepted(self, notification: Notification, now_ns: int) -> None:
        """Note that the receiver has accepted a notification."""
        if notification.key is None:
            return
        group = self._groups.setdefault(notification.key, _Group())
        for alert_id, _ in notification.news:
            group.pending.pop(alert_id, None)
            self._unsilenced.pop(alert_id, None)
            if alert_id in self._active:
                self._active[alert_id].is_sent = True
        group.sent_ns = now_ns
        self._sent_ns.append(now_ns)
        self._positions.settle(notification.settles)
        if not group.pending:
            self._with_news.pop(notification.key, None)
        if len(self._groups) > self._groups_max:
            self._forget_groups(now_ns)

    def _forget_groups(self, now_ns: int) -> None:
        """Forget groups without alerts whose last notification no longer delays another."""
        old_ns = now_ns - self._rules.group_interval_ns
        self._groups = {
            key: g for key, g in self._groups.items() if g.active or g.pending or g.sent_ns >= old_ns
        }
        self._groups_max = max(MIN_GROUPS, 2 * len(self._groups))

    def handled_ns(self, now_ns: int) -> int:
        """Return the time up to which silences and reminders are handled."""
        return min([self._handled_ns, *(until_ns - 1 for until_ns in self._unsilenced.values())])

    def waiting(self) -> int:
        """Return the number of alerts that wait for the receiver."""
        return sum(len(group.pending) for group in self._with_news.values())


class SyncPlan:
    """The plan for Alertmanager: each record in the order of the log, and all active alerts repeatedly."""

    def __init__(self, rules: PlanRules, positions: Positions) -> None:
        self._rules, self._positions = rules, positions
        self._active: dict[str, Alert] = {}
        self._resolved: dict[str, tuple[Alert, int]] = {}
        """Maps id of a cleared alert to its record and the time from which it is not transmitted again."""
        self._pending: list[tuple[Alert, Token]] = []
        self._resend_at_ns = 0
        self._resend: list[str] = []
        """Ids of the alerts that are still to be transmitted again."""

    def restore(self, alert: Alert, arrived_ns: int) -> None:
        """Add an alert record that a former process transmitted."""
        if alert["alert_id"] in self._active or self._rules.is_wanted(alert):
            self._update(alert, arrived_ns)

    def take(self, alert: Alert, token: Token, arrived_ns: int) -> None:
        """Add a new alert record, to be transmitted in the order of the log."""
        self._positions.open(token)
        is_wanted = alert["alert_id"] in self._active or self._rules.is_wanted(alert)
        if not is_wanted or self._is_repeated(alert):
            self._positions.settle([token])
            return
        previous = self._active.get(alert["alert_id"])
        if previous is not None and previous["severity"] != alert["severity"]:
            former: Alert = {**previous, "state": AlertState.CLEARED, "cleared_ns": alert["updated_ns"]}
            self._pending.append((former, token))  # its labels change, so it is another alert to Alertmanager
        self._update(alert, arrived_ns)
        self._pending.append((alert, token))

    def _is_repeated(self, alert: Alert) -> bool:
        alert_id = alert["alert_id"]
        newest = self._resolved[alert_id][0] if alert_id in self._resolved else self._active.get(alert_id)
        return newest is not None and alert["update"] <= newest["update"]

    def _update(self, alert: Alert, arrived_ns: int) -> None:
        if alert["state"] == AlertState.CLEARED:
            self._active.pop(alert["alert_id"], None)
            self._resolved[alert["alert_id"]] = alert, arrived_ns + RESOLVED_NS
        else:
            self._active[alert["alert_id"]] = alert

    def take_note(self) -> None:
        """Transmit the active alerts soon, so that Alertmanager gets silences and owners."""
        self._resend_at_ns = 0

    def next(self, now_ns: int) -> Notification | None:
        """Return the next new records; if there are none, the next active alerts that are due again."""
        if self._pending:
            return self._news()
        if not self._resend and now_ns >= self._resend_at_ns:
            self._resend_at_ns = now_ns + self._rules.resend_ns
            self._resolved = {i: (a, until) for i, (a, until) in self._resolved.items() if until > now_ns}
            self._resend = [*self._resolved, *self._active]
        self._resend = self._valid(self._resend)
        if not self._resend:
            return None
        alerts = [self._record(name) for name in self._resend[:MAX_ALERTS]]
        return _transmission(alerts, (), is_reminder=True)

    def _valid(self, names: list[str]) -> list[str]:
        """Return the ids of the alerts to transmit again, without ids that an active alert has replaced."""
        active = {_labels_key(alert) for alert in self._active.values()} if names else ()
        return [
            name
            for name in names
            if name in self._active
            or (name in self._resolved and _labels_key(self._resolved[name][0]) not in active)
        ]

    def _record(self, alert_id: str) -> Alert:
        return self._active[alert_id] if alert_id in self._active else self._resolved[alert_id][0]

    def _news(self) -> Notification:
        """Return the first new records that have different labels; stop before labels repeat."""
        records: dict[tuple[str, ...], Alert] = {}
        tokens = []
        for alert, token in self._pending[:MAX_ALERTS]:
            if _labels_key(alert) in records:
                break
            records[_labels_key(alert)] = alert
            tokens.append(token)
        return _transmission(list(records.values()), tokens)

    def accepted(self, notification: Notification, now_ns: int) -> None:
        """Note that Alertmanager has accepted a transmission."""
        count = len(notification.firing) + len(notification.resolved)
        if notification.is_reminder:
            del self._resend[:count]
            return
        del self._pending[:count]
        open_tokens = {token for _, token in self._pending[:1]}
        self._positions.settle(token for token in notification.settles if token not in open_tokens)

    def handled_ns(self, now_ns: int) -> int:
        """Return `now_ns`: Alertmanager itself handles all silences and reminders."""
        return now_ns

    def waiting(self) -> int:
        """Return the number of records that wait for Alertmanager."""
        return len(self._pending)

    def active(self) -> Sequence[Alert]:
        """Return the active alerts."""
        return list(self._active.values())


def key_of(alert: Alert) -> GroupKey:
    """Return the group of an alert: its kind and shard."""
    return alert["kind"], alert["shard"]


def _labels_key(alert: Alert) -> tuple[str, ...]:
    """Return the labels that identify an alert to Alertmanager; a later alert with them replaces it."""
    return alert["kind"], alert["shard"], alert["subject"], alert["severity"]


def _transmission(
    alerts: Iterable[Alert], tokens: Iterable[Token], *, is_reminder: bool = False
) -> Notification:
    alerts = list(alerts)
    resolved = tuple(alert for alert in alerts if alert["state"] == AlertState.CLEARED)
    firing = tuple(alert for alert in alerts if alert["state"] != AlertState.CLEARED)
    news = tuple((alert["alert_id"], alert["state"]) for alert in alerts)
    return Notification(None, firing, resolved, () if is_reminder else news, tuple(tokens), is_reminder)
