"""No word of a table breaks, and no part of a tab covers another, on a desktop and a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.bench.web.axe import SIZES
from tests.fabrictime.job_records import JobRecords

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.slow("a page of its own for each of four tabs, each loaded in two sizes"),
]

BROKEN = """
const broken = [], range = document.createRange();
for (const td of document.querySelectorAll('.ft-rows td, .ft-rows th, .ft-figures td')) {
  const walker = document.createTreeWalker(td, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility()) continue;
    for (const word of node.textContent.matchAll(/[^ ]+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1 && word[0].length < 20) broken.push(word[0]);
    }
  }
}
return broken;
"""
"""Script that returns the short words of tables that stand on more than one line."""
COVERED = """
const boxes = [...document.querySelectorAll('.ft-card')].filter((e) => e.checkVisibility());
const parts = [];
for (const card of boxes) for (const part of card.children) {
  const [inner, outer] = [part.getBoundingClientRect(), card.getBoundingClientRect()];
  const isOpen = getComputedStyle(card).overflowY === 'visible' && part.checkVisibility();
  if (isOpen && inner.height && inner.bottom > outer.bottom + 1) parts.push(part.className);
}
for (const head of document.querySelectorAll('.ft-head')) {
  if (head.scrollHeight > head.clientHeight + 1) parts.push('ft-head');
}
const key = document.querySelector('.ft-map-key'), map = document.querySelector('.ft-map');
const left = (e) => e?.getBoundingClientRect().left ?? 0;
if (left(key) < left(map)) parts.push('ft-map-key');
return parts;
"""
"""Script that returns the classes of parts that reach out of their card."""


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("fabric?link=leaf1:swp5>spine1:swp1", "paths"),
        ("jobs?job=llama", "job-evidence"),
        ("alerts", "alerts"),
        ("actions", "actions"),
    ],
)
def test_no_text_breaks_and_no_part_covers_another(
    records: Any,
    log_address: str,
    fresh_evidence: None,
    shared_server: Any,
    start_page: Callable[..., Any],
    browser: Any,
    until: Any,
    path: str,
    test: str,
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    decision = fabric.decision(0, fabric.flow(0, "h1/eth1", "h5/eth1"), f"{cable}/1", kind="GREY")
    text = "leaf1 to spine1 loses 22.9% of its packets since 22:57:05.574 (95%: 17.3% to 29.6%)"
    alert = fabric.alert(cable, text, kind="LINK_GREY", links=[link])
    fabric.publish(
        *fabric.fleet(),
        ("fabric.link-health", cable, fabric.health(link, "GREY", links=[link], loss_rate=0.2, text=text)),
        ("fabric.alerts", alert["alert_id"], alert),
        ("fabric.diagnoses", "llama", JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0)),
        ("fabric.decisions", "h1", decision),
        ("fabric.actions", "h1", fabric.action(decision)),
    )
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    path = f"fabric?link={link}" if path.startswith("fabric") else path
    for width, height in SIZES.values():
        browser.open(f"{page.url}{path}", width=width, height=height)
        until("the table", lambda: browser.text(test))
        if path.startswith("fabric"):
            until("the legend", lambda: browser.js("return document.querySelector('.ft-map-key').innerText"))
        assert browser.js(BROKEN) == [], f"{width} px"
        assert browser.js(COVERED) == [], f"{width} px"
