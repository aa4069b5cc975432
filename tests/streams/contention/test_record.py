"""Contention records: fields, text and the sums that each record restarts."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.records import ContentionKind, ContentionState, ContentionWindow
from streams.contention.classify import LinkView
from streams.contention.record import make_record, signature
from streams.contention.window import LinkWindow, Place, Step, Window
from streams.runtime.flow_table import FlowOnLink, LiveFlow

MS = 1_000_000
LINK = "leaf1:1>h5:eth1"


def on_link(number: int, rate_bps: float, *, certain: bool = True) -> FlowOnLink:
    nic = f"h{number}/eth1"
    live = LiveFlow(f"f{number}", nic, "h5/eth1", "train", None, rate_bps, False, False, (), 1, None)
    return FlowOnLink(live, 1.0 if certain else 0.5)


def view(*flows: FlowOnLink) -> LinkView:
    link = LinkWindow(LINK, Place(None, "h5/eth1"), rate_bps=1_000_000_000)
    link.window = Window(opened_ns=100 * MS)
    link.window.scores[ContentionKind.INCAST] = link.window.score_ns = 10.0 * MS
    return LinkView(link, list(flows), None)


def test_a_record_has_mean_and_peak_and_the_next_one_starts_new_sums() -> None:
    seen = view(on_link(1, 6e8), on_link(2, 2e8))
    window = seen.link.window
    assert window is not None
    window.add(Step(100_000.0, 0.5, True, True, False, True), 50_000.0, 10 * MS)
    window.add(Step(300_000.0, 0.0, True, False, False, True), 50_000.0, 10 * MS)
    record = make_record("fabric", seen, {LINK: seen}, ContentionState.OPENED, 200 * MS)
    codec.encode(ContentionWindow, record)
    assert (record["depth_bytes"], record["depth_peak_bytes"]) == (200_000.0, 300_000.0)
    assert record["delay_ns"] == pytest.approx(200_000 * 8)
    assert (record["detected_by"], record["ce_share"]) == ("BOTH", 0.25)
    assert [(flow["flow_id"], flow["share"]) for flow in record["flows"]] == [("f1", 0.75), ("f2", 0.25)]
    assert record["text"] == (
        "leaf1 to h5/eth1: incast, 2 flows of 2 senders, job train, 200 kB queued, 1600 us, "
        "25% marked with CE"
    )
    again = make_record("fabric", seen, {LINK: seen}, ContentionState.UPDATED, 300 * MS)
    assert (again["update"], again["depth_bytes"], again["depth_peak_bytes"]) == (1, 0.0, 300_000.0)


def test_a_closed_window_keeps_its_last_flows() -> None:
    seen = view(on_link(1, 6e8))
    make_record("fabric", seen, {LINK: seen}, ContentionState.OPENED, 200 * MS)
    seen.link.queued_until_ns = 350 * MS
    empty = LinkView(seen.link, [], None)
    record = make_record("fabric", empty, {LINK: empty}, ContentionState.CLOSED, 500 * MS)
    assert [flow["flow_id"] for flow in record["flows"]] == ["f1"]
    assert record["closed_ns"] == 350 * MS
    assert "over after 0.25 s" in record["text"]


def test_uncertain_flows_are_counted_but_not_named() -> None:
    seen = view(on_link(1, 6e8, certain=False))
    record = make_record("fabric", seen, {LINK: seen}, ContentionState.OPENED, 200 * MS)
    assert record["flows"] == []
    assert "1 flow may cross it" in record["text"]


def test_other_flows_change_the_signature_and_rates_do_not() -> None:
    seen = view(on_link(1, 6e8), on_link(2, 5e8))
    window = seen.link.window
    assert window is not None
    before = signature(window, seen)
    assert signature(window, LinkView(seen.link, [on_link(2, 6e8), on_link(1, 5e8)], None)) == before
    assert signature(window, LinkView(seen.link, [on_link(1, 6e8)], None)) != before


def test_a_link_without_a_window_has_no_record() -> None:
    seen = view()
    seen.link.window = None
    with pytest.raises(ValueError, match="no open window"):
        make_record("fabric", seen, {}, ContentionState.OPENED, 1)
