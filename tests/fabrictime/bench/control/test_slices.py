"""The slice bench's flows, as far as their links are known, and its spans of the monotonic clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from fabrictime.bench.control import slices


def test_only_flows_of_the_seed_with_known_links_count() -> None:
    flows = {
        "a": {"job": "gold-3", "links": ["x"]},
        "b": {"job": "greedy-3", "links": ["x"]},
        "c": {"job": "greedy-3", "links": []},
        "d": {"job": "gold-2", "links": ["x"]},
        "e": {"job": None, "links": ["x"]},
    }
    watch: Any = SimpleNamespace(flows=flows)
    assert slices._names(watch, 3) == {"a", "b"}
    assert slices._names(SimpleNamespace(flows={}), 3) == set()  # type: ignore[arg-type]


def test_a_span_is_measured_by_the_monotonic_clock() -> None:
    begin_s, end_s = slices._span(0.01)
    assert begin_s + 0.01 <= end_s <= time.monotonic()
