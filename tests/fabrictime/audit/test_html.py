"""The HTML report of a fleet audit: one page, also with no host and with a thousand."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fabrictime.audit.html import Limits, page
from schemas.records import AuditResult
from streams.audit.results import FLEET
from tests.fabrictime.audit.fleets import F, U, fleet, report, result

VOID = {"meta", "rect", "br"}


class Reader(HTMLParser):
    """Checks that elements nest, and collects text and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] != "style":
            self.text += f"{data} "


def made(results: list[AuditResult], missing: Sequence[str] = (), **limits: int) -> str:
    return "".join(page(report(results, missing), Limits(**limits)))


def read(*arguments: Any, **limits: int) -> str:
    return re.sub(r"\s+", " ", Reader(made(*arguments, **limits)).text)


def test_the_failed_checks_stand_first_with_remedy_action_and_hosts() -> None:
    text = read(list(fleet(64)), ["node900"])
    assert "Not fit 7 of 64 hosts have errors, in 3 checks." in text
    assert "2 hosts could not be checked in full. 1 host did not answer." in text
    assert "replace 3 hosts node[007,031,047]" in text
    issue = text.index("RDMA interfaces of like cards have the same MTU 4 of 64 hosts")
    assert "ip link set dev INTERFACE mtu MTU" in text[issue : issue + 200]
    assert "eth1: 1500 bytes, others 9000 4 hosts node[020-023]" in text
    assert issue < text.index("NUMA balancing is off 21 of 64 hosts")
    assert "did not answer within 60 s node900" in text
    assert "adjtimex: permission denied 2 hosts node[009,059]" in text
    assert "kernel software.kernel-taint 6.8.0-45-generic 62 hosts 6.8.0-31-generic 2 hosts" in text


def test_foreign_text_is_escaped_and_the_page_loads_nothing() -> None:
    html = made(list(fleet(64)))
    assert "<script" not in html
    reader = Reader(html)
    assert "<script>alert(1)</script>" in reader.text
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert not [value for name, value in reader.attributes if name in ("src", "srcset") or name[:2] == "on"]
    assert all(value and value[0] == "#" for name, value in reader.attributes if name == "href")
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_pages_without_a_host_and_of_one() -> None:
    assert "Nothing could be checked" in read([])
    assert "Not checked everywhere" in read([result("node.ecc", "h1", U, "denied")])
    assert "Nothing could be checked" in read([], ["h1"])
    text = read(list(fleet(1)))
    assert "Fit No error on 1 host." in text
    assert "node001 skipped" not in text
    assert "node001 passed 8 of 8 8 of 8" in text


def test_a_fleet_of_which_a_host_did_not_answer_is_not_called_fit() -> None:
    html = made(list(fleet(1)), ["h2"])
    assert "<h1>Not checked everywhere</h1>" in html
    assert 'class="fit"' not in html


def test_results_of_the_whole_fleet_are_not_of_a_host() -> None:
    swap = result("backend.mtu", FLEET, F, "cables are swapped", remedy="swap leaf3 port 7 and port 8")
    text = read(
        [result("node.oom", "h1"), result("backend.mtu", "h1", F, "1500"), swap, result("backend.mtu", "h2")]
    )
    assert "1 of 2 hosts has errors" in text
    assert "cables are swapped swap leaf3 port 7 and port 8 the whole fleet" in text
    assert "Not fit The fleet has errors, in 1 check." in read([result("node.oom", "h1"), swap])


def test_rows_beyond_the_limits_are_counted() -> None:
    different = [result("backend.mtu", f"n{k}", F, f"{1500 + k} bytes") for k in range(1, 41)]
    text = read(different, causes=5, rows=10)
    assert "35 other texts 35 hosts n[6-40]" in text
    assert "More hosts with findings: 30 hosts n[11-40]" in text


THOUSAND = """
import time
from itertools import islice
from fabrictime.audit.html import page
from fabrictime.bench._machine import peak_mb
from tests.fabrictime.audit.fleets import fleet, report
some = list(fleet(1000))
copies = ({**each, "check": f"{each['check']}{copy}"} for copy in range(3) for each in some)
results = list(islice(copies, 100_000))
started_s = time.process_time()
size = sum(map(len, page(report(results))))
spent_s = time.process_time() - started_s
print(len(results), size, spent_s, peak_mb())
"""


def test_a_thousand_hosts_and_a_hundred_checks_fit_time_and_memory() -> None:
    """A process of its own: the memory of other tests would count."""
    child = subprocess.run([sys.executable, "-c", THOUSAND], capture_output=True, text=True, check=True)
    results, size, spent_s, memory_mb = map(float, child.stdout.split())
    assert results == 100_000
    assert size < 2_000_000
    assert spent_s < 10
    assert memory_mb < 500


@pytest.mark.chromium
@pytest.mark.parametrize("hosts", [0, 1, 64])
def test_the_page_fits_a_screen_a_phone_and_paper(hosts: int, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "audit.html").write_text(made(list(fleet(hosts))), encoding="utf-8")
    for width in (1280, 390):
        browser.open((tmp_path / "audit.html").as_uri(), dark=width == 390, width=width)
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.errors() == []
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    pages = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(pdf)))
    assert 1 <= pages <= 4


def test_commands_in_remedies_are_code() -> None:
    swap = result("node.oom", "h1", F, "2", remedy="`dmesg | grep -i oom` names <it>, a ` alone does not")
    html = made([swap])
    assert "<code>dmesg | grep -i oom</code> names &lt;it&gt;, a ` alone does not" in html


def test_the_picture_of_few_hosts_has_their_names_and_its_note_apart() -> None:
    html = made([result("node.oom", f"node00{number}") for number in range(1, 5)])
    [ends] = re.findall(r'<p class="ends".*?</p>', html)
    assert re.findall(r"<span>(.*?)</span>", ends) == ["node001", "node004"]
    assert "Each column is a host" in html[html.index(ends) :]
