"""Orders from the page: a real browser logs in, gives them, and a real log holds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fabrictime.commands.alert.notes import AlertNotes
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.web.orders import IN_THE_PAST, NO_LOGIN, alert_orders, refusal, windows_of
from fabrictime.web.users import Role, User
from tests.records import make


def test_a_refusal_states_its_reason() -> None:
    reader = User("ann", Role.READ)
    assert refusal(None, Role.ACT, False) == NO_LOGIN
    assert refusal(reader, Role.CONFIGURE, False) == "ann may not do this: it needs the role configure."
    assert refusal(User("bob", Role.ACT), Role.CONFIGURE, True) == IN_THE_PAST
    assert refusal(User("bob", Role.ACT), Role.CONFIGURE, False) == ""


def test_a_command_quotes_its_subject() -> None:
    alert: Any = make("Alert", subject="leaf1:p1>spine1:p2", links=[], nics=[], grouped=[])
    orders = alert_orders(alert, {})
    assert [order.command for order in orders] == [
        "fabrictime alert ack 'leaf1:p1>spine1:p2'",
        "fabrictime alert silence 'leaf1:p1>spine1:p2' --until {}",
        "fabrictime alert comment 'leaf1:p1>spine1:p2' {}",
        "fabrictime alert maintenance {}",
    ]
    assert [text for text, _ in orders[-1].choices] == [
        "link 'leaf1:p1<>spine1:p2'",
        "link '*leaf1:*'",
        "link '*spine1:*'",
    ]


RACKS = {"h1": "r1", "h2": "r1", "h3": None}


@pytest.mark.parametrize(
    ("subject", "nics", "scopes"),
    [
        ("h1/eth1", ["h1/eth1"], ["host h1", "rack r1"]),
        ("h3", [], ["host h3"]),
        ("h1:e<>leaf1:p", ["h1/e"], ["link h1:e<>leaf1:p", "link *leaf1:*", "host h1", "rack r1"]),
        ("train", [], []),
        ("cables", ["h1/e", "h2/e"], ["rack r1"]),
        ("probers", ["h1/e", "h2/e", "h3/e"], []),
    ],
)
def test_maintenance_windows_concern_the_alert(subject: str, nics: list[str], scopes: list[str]) -> None:
    """A window of one host does not cover an alert about two."""
    alert: Any = make("Alert", subject=subject, links=[], nics=nics, grouped=[])
    assert [" ".join(each) for each in windows_of(alert, RACKS)] == scopes
    is_offered = "maintenance" in [order.name for order in alert_orders(alert, RACKS)]
    assert is_offered == bool(scopes)


@pytest.fixture
def page_of(
    records: Any, log_address: str, shared_server: Any, start_page: Callable[..., Any], tmp_path: Path
) -> Any:
    """A page with a login, whose log holds an alert."""
    users = tmp_path / "users"
    users.touch(mode=0o600)
    users.write_text("".join(f"{role}er {role} {role}-0123456789abcdef0123\n" for role in ROLES))
    fabric = records(log_address)
    alert = fabric.alert("h1/eth1", "h1/eth1 is down", kind="NIC_DOWN")
    fabric.publish(*fabric.fleet(), ("fabric.alerts", alert["alert_id"], alert))
    return start_page(shared_server, kafka={"bootstrap": log_address}, login={"users_file": str(users)})


ROLES = ("look", "configure", "act")


def log_in(browser: Any, page: Any, role: str, path: str) -> None:
    browser.open(f"{page.url}login?next=/{path}")
    browser.js(
        "document.querySelector('[name=token]').value = arguments[0]; document.forms[0].submit()",
        f"{role}-0123456789abcdef0123",
    )


def press(browser: Any, until: Any, test: str) -> None:
    shown = "return document.querySelector(`[data-testid=${arguments[0]}]`)?.offsetParent != null"
    until(f"the button {test}", lambda: browser.js(shown, test))
    browser.js("document.querySelector(`[data-testid=${arguments[0]}]`).click()", test)


def type_into(browser: Any, test: str, value: str) -> None:
    browser.js(
        "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
        "e.value = arguments[1]; e.dispatchEvent(new Event('input'))",
        test,
        value,
    )


@pytest.mark.chromium
def test_a_configurer_acknowledges_silences_and_comments(
    page_of: Any, browser: Any, until: Any, log_address: str
) -> None:
    log_in(browser, page_of, "configure", "alerts")
    press(browser, until, "order-ack")
    assert browser.text("order-command") == "fabrictime alert ack h1/eth1"
    press(browser, until, "order-send")
    until("acknowledged", lambda: browser.text("order-result") == "Done.")
    press(browser, until, "order-silence")
    assert browser.text("order-command") == "fabrictime alert silence h1/eth1 --until +1h"
    press(browser, until, "order-send")
    until("silent", lambda: browser.text("order-result") == "Done.")
    press(browser, until, "order-comment")
    assert browser.js("return document.querySelector('[data-testid=order-send]').disabled")
    type_into(browser, "order-field", "it's the cable")
    assert browser.text("order-command") == "fabrictime alert comment h1/eth1 'it'\\''s the cable'"
    press(browser, until, "order-send")
    until("commented", lambda: browser.text("order-result") == "Done.")
    press(browser, until, "order-maintenance")
    assert browser.text("order-command") == "fabrictime alert maintenance host h1"
    press(browser, until, "order-send")
    until("in maintenance", lambda: browser.text("order-result") == "Done.")
    notes = AlertNotes(log_address).index.notes
    window, note = notes.pop("host:h1"), notes.pop("h1/eth1")
    assert (window["scope"], window["pattern"], notes) == ("HOST", "h1", {})
    assert (window["silent_until_ns"] or 0) - (window["silent_from_ns"] or 0) == 4 * 3600 * 10**9
    assert note["acknowledged_ns"]
    assert (note["silent_until_ns"] or 0) - (note["silent_from_ns"] or 0) == 3600 * 10**9
    assert [comment["text"] for comment in note["comments"]] == ["it's the cable"]
    assert note["author"].startswith("configureer@")
    until("the note on the page", lambda: "it's the cable" in browser.text("alert-figures"))


@pytest.mark.chromium
def test_a_user_without_the_role_sees_the_reason_and_the_command(
    page_of: Any, browser: Any, until: Any, log_address: str
) -> None:
    log_in(browser, page_of, "configure", "actions")
    press(browser, until, "order-pause")
    assert browser.text("order-command") == "fabrictime pause"
    assert browser.text("order-result") == "configureer may not do this: it needs the role act."
    assert browser.js("return document.querySelector('[data-testid=order-send]').disabled")
    assert LiveRecords(log_address).records == {}


@pytest.mark.chromium
def test_an_actor_pauses_all_action(page_of: Any, browser: Any, until: Any, log_address: str) -> None:
    log_in(browser, page_of, "act", "actions")
    press(browser, until, "order-pause")
    press(browser, until, "order-send")
    until("paused", lambda: browser.text("order-result") == "Done.")
    [record] = LiveRecords(log_address).records.values()
    assert (record["mode"], record["by"].partition("@")[0]) == ("OBSERVE", "acter")
    until("the mode on the page", lambda: "set by acter" in browser.text("mode"))
