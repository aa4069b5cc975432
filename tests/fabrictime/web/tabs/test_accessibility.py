"""Each tab under axe: light and dark, on a desktop and a phone, with an incident and a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.bench.web.axe import violations_of
from fabrictime.web.tabs.base import PAGES
from tests.fabrictime.job_records import JobRecords

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.slow("each tab is loaded four times, and axe takes seconds for each"),
]


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(
    records: Any,
    log_address: str,
    fresh_evidence: None,
    shared_server: Any,
    start_page: Callable[..., Any],
    browser: Any,
    path: str,
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    alert = fabric.alert(cable, "leaf1 to spine1 loses packets", kind="LINK_GREY")
    fabric.publish(
        *fabric.fleet(),
        ("fabric.link-health", cable, fabric.health(link, "GREY", links=[link], loss_rate=0.2)),
        ("fabric.alerts", alert["alert_id"], alert),
        ("fabric.contention", link, fabric.contention(link)),
        ("fabric.diagnoses", "llama", JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0)),
    )
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    assert list(violations_of(browser.driver, f"{page.url}{path.strip('/')}")) == []
