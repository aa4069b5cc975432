"""Buttons that change something, each with the command that has the same effect.

The browser sends an order to the page's HTTP interface, which checks the user's role. The buttons only show
whether the interface would refuse the order, and why.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from actuators.notify.notes import hosts_of
from fabrictime.web.users import Role, User
from fabrictime.web.widgets import LiveList
from schemas.ids import cable_ends, cable_id, end_parts
from schemas.records import Alert

NO_LOGIN: Final = "This page has no login (web.login), so it changes nothing. Use the command."
IN_THE_PAST: Final = "The page shows the past. Choose Live, or use the command."
SILENCES: Final = (("+1h", 3600), ("+4h", 14_400), ("+24h", 86_400), ("+168h", 604_800))
"""Ends of a silence as the command takes them, and the same in s."""

MAINTENANCE_S: Final = 14_400
"""Length of a maintenance window, s: the default of the command."""


@dataclass(frozen=True, slots=True)
class Order:
    """A button. `entry` is the field of the body that the user enters, as text or as one of `choices`."""

    name: str
    label: str
    path: str
    command: str
    body: dict[str, Any] = field(default_factory=dict)
    entry: str = ""
    choices: tuple[tuple[str, Any], ...] = ()


def refusal(user: User | None, role: Role, is_past: bool) -> str:
    """Return the reason why the user cannot give an order that needs `role`; empty if the user can."""
    if user is None:
        return NO_LOGIN
    if user.role < role:
        return f"{user.name} may not do this: it needs the role {role.name.lower()}."
    return IN_THE_PAST if is_past else ""


def windows_of(alert: Alert, racks: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield scope and pattern of each maintenance window that would cover an alert: its cable, the switch of
    all its cables, its host, or its rack. `racks` holds the rack of each host.
    """
    names = (alert["subject"], *alert["grouped"], *alert["links"])
    cables = {cable_id(name.replace("<>", ">")) for name in names if ">" in name}
    nodes = [{end_parts(end).node for end in cable_ends(cable)} for cable in cables]
    yield from (("link", cable) for cable in cables if len(cables) == 1)
    shared = set.intersection(*nodes) - racks.keys() if nodes else set()
    yield from (("link", f"*{node}:*") for node in sorted(shared))
    hosts = set(hosts_of(alert, racks))
    for scope, places in (("host", hosts), ("rack", {racks.get(host) for host in hosts})):
        yield from ((scope, place) for place in places if place and len(places) == 1)


def alert_orders(alert: Alert, racks: Mapping[str, str | None]) -> list[Order]:
    """Return the buttons for the alerts of a subject, such as Acknowledge, Silence and Comment."""
    subject = alert["subject"]
    windows = tuple(
        (f"{scope} {shlex.quote(pattern)}", {"scope": scope, "pattern": pattern})
        for scope, pattern in windows_of(alert, racks)
    )
    maintenance = "fabrictime alert maintenance {}"
    name, path, body = shlex.quote(subject), "/api/v1/notes", {"subject": subject}
    timed = {**body, "silence_s": MAINTENANCE_S}
    silence = f"fabrictime alert silence {name} --until {{}}"
    return [
        Order("ack", "Acknowledge", path, f"fabrictime alert ack {name}", {**body, "acknowledge": True}),
        Order("silence", "Silence", path, silence, body, "silence_s", SILENCES),
        Order("comment", "Comment", path, f"fabrictime alert comment {name} {{}}", body, "comment"),
        *(
            [Order("maintenance", "Maintenance, 4 h", path, maintenance, timed, "maintenance", windows)]
            if windows
            else []
        ),
    ]


PAUSES: Final = (
    Order("pause", "Pause all action", "/api/v1/pause", "fabrictime pause"),
    Order("revert", "Pause and undo", "/api/v1/pause", "fabrictime pause --revert", {"revert": True}),
    Order("resume", "Resume", "/api/v1/resume", "fabrictime resume"),
)
"""Orders of operators about all action."""


class Orders(LiveList[Any], component="orders.js"):
    """A row of buttons for orders that need the same role."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self._role = role

    def show(self, orders: tuple[Order, ...] | list[Order], user: User | None, is_past: bool) -> None:
        """Show these orders to the user."""
        self.put([refusal(user, self._role, is_past), *orders])

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        refused, *orders = self._shown or [""]
        shown = [asdict(order) for order in orders]
        return {"classes": " ".join(self._classes), "refusal": refused, "orders": shown}
