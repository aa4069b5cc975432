"""A log with a dead link and its alert."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schemas.topics import ALERTS, LINK_HEALTH
from tests.fabrictime.commands.views.test_links import alert, health, produce
from tests.fabrictime.evidence import FreshEvidence

LEAF, OTHER = "leaf31:swp3<>spine1:swp31", "leaf32:swp3<>spine1:swp32"


@pytest.fixture(scope="module")
def fleet_log(log: str) -> Iterator[str]:
    with FreshEvidence(log):
        produce(log, LINK_HEALTH, [health(LEAF, "DOWN"), health(OTHER, "UP")])
        produce(log, ALERTS, [alert(LEAF, "RAISED")])
        yield log
        produce(log, LINK_HEALTH, [health(LEAF, "UP", 2)])
        produce(log, ALERTS, [alert(LEAF, "CLEARED", 1)])
