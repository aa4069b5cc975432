"""Each kind of alert has a title, a next step and a runbook page with the same sections."""

import re
from pathlib import Path

import pytest

from actuators.notify.runbooks import DOCUMENTATION, RUNBOOKS, page_of, title_of
from actuators.notify.settings import NotifySettings
from fabrictime.metrics.rules import RUNBOOK
from schemas.records import AlertKind

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "runbooks"


@pytest.mark.parametrize("kind", AlertKind)
def test_each_kind_of_alert_has_a_runbook(kind):
    page = (ROOT / page_of(kind, "docs/runbooks")).read_text()
    heading, *sections = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert heading == f"{RUNBOOKS[kind].title} ({kind})"
    assert sections == ["Meaning", "Check", "Do"]
    assert all(part.strip() for part in re.split(r"^#+ .*$", page, flags=re.MULTILINE)[1:][1:])
    assert RUNBOOKS[kind].next_step.endswith(".")


def test_a_title_of_a_trouble_that_is_over_is_in_the_past():
    assert title_of(AlertKind.JOB_HANG) == "Job hangs"
    assert title_of(AlertKind.JOB_HANG, is_over=True) == "Job hung"
    assert title_of(AlertKind.LATENCY, is_over=True) == title_of(AlertKind.LATENCY)


def test_no_page_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == {Path(page_of(kind, "x")).name for kind in AlertKind}


def test_addresses_of_pages_are_absolute_and_a_package_installs_the_pages():
    pages = [page_of(kind, NotifySettings().runbook_url) for kind in AlertKind]
    for page in [*pages, RUNBOOK.partition("#")[0]]:
        assert page.startswith(f"{DOCUMENTATION}/")
        assert (ROOT / "docs" / page.removeprefix(f"{DOCUMENTATION}/")).is_file()
