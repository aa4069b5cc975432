"""Live tabs: the header's figures and the banner, from no NIC to a thousand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fabrictime.state.evidence import CHECKING, Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.live_fabric import ALL_PARTS, LiveFabric
from fabrictime.web.service_faults import ServiceFaults
from fabrictime.web.settings import WebSettings
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.live_tab import FAST_PARTS, KPIS, LiveTab, kinds_text
from tests.fabrictime.fill import fill, fill_health

S = 1_000_000_000


class Tab(LiveTab[Choice]):
    """A tab without content of its own."""

    address = "/fabric"

    def build(self) -> None:
        self._build_header(KPIS)
        self.shown: list[frozenset[str]] = []

    def on_live(self, parts: frozenset[Any]) -> None:
        self.shown.append(parts)

    def texts(self, key: str) -> tuple[str, str]:
        value, note = self.kpis[key]
        return value.text, note.text


@pytest.fixture
def status() -> list[ConsumerStatus]:
    return [ConsumerStatus(caught_up=True)]


@pytest.fixture
def verdict() -> list[Verdict]:
    return [Verdict()]


@pytest.fixture
def tab(page_client: Any, state: FabricState, status: list[ConsumerStatus], verdict: list[Verdict]) -> Tab:
    live = LiveFabric(state, lambda: status[0], lambda: 5 * S, lambda: verdict[0])
    tab = Tab(AppContext(WebSettings(), None, None, live), Choice())  # type: ignore[arg-type]
    tab.build()
    return tab


def test_without_a_record_every_figure_is_a_dash(tab: Tab) -> None:
    tab.start_live()
    tab._show_banner()
    assert tab.texts("cables") == ("—", "of 0, 0 hosts, 0 NICs")
    assert tab.texts("deepest") == ("—", "no queue inferred yet")
    assert tab.texts("alerts") == ("0", "none")
    assert tab.banner.text == "No NICs yet: waiting for the first prober."
    assert not tab.badge.visible


def test_one_link_that_is_down_is_counted_and_its_alert_is_on_the_badge(
    tab: Tab, state: FabricState, fabric: Any
) -> None:
    link = fabric.up("leaf1", 1)
    fill(state, *fabric.fleet(), at_ns=4 * S)
    *measured, unmeasured = [up for up in fabric.links()[::2] if up != link]
    fill_health(state, fabric, link, "DOWN")
    for up in measured:
        fill_health(state, fabric, up, "UP")
    alert = fabric.alert(fabric.cable(link), "leaf1 to spine1 is DOWN")
    fill(state, ("fabric.alerts", alert["alert_id"], alert), at_ns=4 * S)
    tab.start_live()
    tab._show_banner()
    assert tab.texts("cables") == ("22", "of 24, 8 hosts, 8 NICs")
    assert tab.texts("trouble") == ("1", "1 DOWN, 1 unknown")
    assert tab.texts("alerts") == ("1", "link down")
    assert tab.texts("age") == ("1.0 s", "of any topic of the fabric")
    assert (tab.badge.text, tab.badge.visible, "ft-bad" in tab.badge._classes) == ("1", True, True)
    assert tab.banner.text == ""
    assert "ft-bad" in tab.light._classes, "the light is that of the tab Now"
    fill_health(state, fabric, unmeasured, "UP")
    tab._show_banner()
    assert tab.texts("cables") == ("23", "of 24, 8 hosts, 8 NICs")
    assert tab.texts("trouble") == ("1", "1 DOWN")


@pytest.mark.parametrize(
    ("pace", "banner", "kind"),
    [
        (None, "", "ok"),
        (1.0, "", "ok"),
        (0.6, "The simulation is slow: simulates 0.6 s per second; use fewer NICs (sim:4).", "wait"),
    ],
)
def test_a_simulated_fleet_shows_its_pace(
    tab: Tab, state: FabricState, fabric: Any, pace: float | None, banner: str, kind: str
) -> None:
    nics = [(topic, key, r) for topic, key, r in fabric.fleet() if topic == "fabric.inventory"]
    fill(state, *((topic, key, r | {"simulation_pace": pace}) for topic, key, r in nics), at_ns=4 * S)
    tab.start_live()
    tab._show_banner()
    assert tab.banner.text == banner
    assert f"ft-{kind}" in tab.light._classes
    tab.live.is_past = True
    tab._show_banner()
    assert tab.banner.text == ""


def test_the_time_of_a_slow_simulation_is_behind_the_log(state: FabricState, fabric: Any) -> None:
    live = LiveFabric(state, lambda: ConsumerStatus(caught_up=True), lambda: 100 * S, Verdict)
    nic = fabric.nics[0]
    record = fabric.nic(nic) | {"simulation_pace": 0.5, "announced_ns": 30 * S}
    state.take("fabric.inventory", nic, record, 90 * S)
    assert (live.now_ns(), live.log_now_ns()) == (35 * S, 100 * S)


def test_a_thousand_nics_are_counted(tab: Tab, state: FabricState, records: Any) -> None:
    large = records(hosts=1000, leaves=20)
    fill(state, *(("fabric.inventory", nic, large.nic(nic)) for nic in large.nics))
    tab.start_live()
    assert tab.texts("cables")[1].endswith("1,000 hosts, 1,000 NICs")


@pytest.mark.parametrize(
    ("given", "text", "kind"),
    [
        (
            ConsumerStatus(error="log h:1: no answer"),
            "log h:1: no answer. The page shows the last state.",
            "bad",
        ),
        (ConsumerStatus(missing=("fabric.queues",)), "Topics missing in the log: fabric.queues.", "bad"),
        (ConsumerStatus(), "Reading the log …", "wait"),
    ],
)
def test_the_banner_names_the_topics_that_the_log_lacks(
    tab: Tab, status: Any, state: FabricState, fabric: Any, given: ConsumerStatus, text: str, kind: str
) -> None:
    fill(state, *fabric.fleet(peers=1))
    status[0] = given
    tab._show_banner()
    assert tab.banner.text == text
    assert f"ft-{kind}" in tab.light._classes


def test_without_fresh_evidence_health_is_unknown(
    tab: Tab, state: FabricState, fabric: Any, verdict: list[Verdict]
) -> None:
    fill(state, *fabric.fleet(), at_ns=4 * S)
    for up in fabric.links()[::2]:
        fill_health(state, fabric, up, "UP")
    tab.start_live()
    tab._show_banner()
    keys = ("cables", "trouble", "contention", "alerts")
    assert [tab.texts(key)[0] for key in keys] == ["24", "0", "0", "0"]
    verdict[0] = CHECKING
    tab._show_banner()
    assert [tab.texts(key)[0] for key in keys] == ["24", "—", "—", "—"]
    assert tab.banner.text == ""
    verdict[0] = Verdict(("no fresh clock window for 12 s (stream worker or its topics gone?)",))
    tab._show_banner()
    assert [tab.texts(key)[0] for key in keys] == ["—", "—", "—", "—"]
    assert tab.banner.text == (
        "Health is not known: no fresh clock window for 12 s (stream worker or its topics gone?). "
        "The page shows the last state."
    )
    assert "ft-bad" in tab.light._classes


def test_the_banner_names_the_services_that_do_not_work(
    tab: Tab, state: FabricState, fabric: Any, tmp_path: Any
) -> None:
    fill(state, *fabric.fleet(), at_ns=4 * S)
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"children": [{"name": "sink", "fault": "history does not store: no room"}]}))
    tab.context = replace(tab.context, services=ServiceFaults(path))
    tab._show_banner()
    assert tab.banner.text == "1 service does not work: sink: history does not store: no room."
    assert "ft-bad" in tab.light._classes


def test_a_tab_without_a_log_names_the_missing_setting(page_client: Any) -> None:
    tab = Tab(AppContext(WebSettings(), None, None), Choice())  # type: ignore[arg-type]
    tab.build()
    tab.start_live()
    tab._show_banner()
    assert tab.banner.text.startswith("web.kafka is not set")


def test_fast_parts_leave_the_header_alone(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[None] = []
    monkeypatch.setattr(tab, "_show_kpis", lambda: drawn.append(None))
    tab._on_live(FAST_PARTS)
    assert drawn == []
    tab._on_live(ALL_PARTS)
    assert (len(drawn), tab.shown) == (1, [FAST_PARTS, ALL_PARTS])


def test_longer_slots_of_a_slow_inference_stand_beside_the_deepest_queue(
    tab: Tab, state: FabricState, fabric: Any
) -> None:
    link = fabric.up("leaf1", 1)
    fill(state, *fabric.fleet(), at_ns=4 * S)
    block = fabric.queues({link: {"depth_mean_bytes": 1e5}}, 4 * S) | {"slots": 10, "slot_ns": 4_000_000}
    fill(state, ("fabric.queues", "fabric", block | {"fold": 4}), at_ns=4 * S)
    tab.start_live()
    tab._show_banner()
    assert tab.texts("deepest")[1].endswith("; slots 4 times as long: inference is slow")
    usual = block | {"window_start_ns": 4 * S + 40_000_000, "fold": 1}
    fill(state, ("fabric.queues", "fabric", usual), at_ns=4 * S)
    tab.live._summary = None
    tab._show_banner()
    assert "slots" not in tab.texts("deepest")[1]


def test_kinds_that_do_not_fit_below_a_figure_are_counted() -> None:
    kinds = ("HOST_DOWN", "JOB_HANG", "JOB_SLOW", "LINK_GREY", "LINK_GREY")
    assert kinds_text([{"kind": kind} for kind in kinds[:2]]) == "host down, job hang"
    assert kinds_text([{"kind": kind} for kind in kinds]) == "host down, job hang, 2 more"


def test_cables_of_unknown_state_are_not_counted_as_zero(tab: Tab, state: FabricState, fabric: Any) -> None:
    fill(state, *((topic, key, record) for topic, key, record in fabric.fleet() if topic == "fabric.paths"))
    tab.start_live()
    assert tab.live.summary().cables["UNKNOWN"] > 0
    assert tab.texts("cables")[0] == "—"
