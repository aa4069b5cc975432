"""Search by a part of a name: its order, its kinds, and the work that one query takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.search_index import KIND_LIMIT, MIN_REBUILD_S, Names, SearchIndex, normalised
from tests.fabrictime.fill import fill
from tests.fabrictime.job_records import JobRecords

OBJECTS = 10_000


class CountedText(str):
    """A text that counts how often it is searched."""

    scans = 0

    def find(self, *arguments: Any) -> int:
        type(self).scans += 1
        return super().find(*arguments)


@pytest.fixture
def index(state: FabricState, fabric: Any) -> SearchIndex:
    """Return the index of 8 hosts, a job with a flow, and an alert."""
    link = fabric.up("leaf2", 1)
    alert = fabric.alert(fabric.cable(link), "leaf2 to spine1 is down", links=[link], jobs=["train-7"])
    flow = fabric.flow(17, "h3/eth1", "h5/eth1", job="train-7")
    fill(
        state,
        *fabric.fleet(),
        ("fabric.alerts", alert["alert_id"], alert),
        ("fabric.flows", "h3", fabric.flows("h3", [flow])),
        ("fabric.diagnoses", "train-7", JobRecords(fabric, "train-7").diagnosis(1, fabric.now_ns, slow=2)),
    )
    return SearchIndex(state)


def kinds(index: SearchIndex, query: str) -> list[str]:
    return list(dict.fromkeys(result.kind for result in index.find(query)))


@pytest.mark.parametrize(
    ("query", "kind", "name", "detail"),
    [
        ("h3/eth1", "NIC", "h3/eth1", "rack r2, 1.00 Gbit/s"),
        ("H3", "host", "h3", "1 NIC"),
        ("leaf2", "switch", "leaf2", ""),
        ("r2", "rack", "r2", "2 NICs"),
        ("train", "job", "train-7", "slow flow"),
        ("leaf2>spine1", "link", "leaf2:swp3 ⇄ spine1:swp2", "UNKNOWN"),
        ("spine1 → leaf2", "link", "leaf2:swp3 ⇄ spine1:swp2", "UNKNOWN"),
        ("leaf2:swp3 <> spine1:swp2", "link", "leaf2:swp3 ⇄ spine1:swp2", "UNKNOWN"),
        ("sock:17", "flow", "h3 sock:17", "h3/eth1 → h5/eth1, 80.0 Mbit/s, job train-7"),
        ("link down", "alert", "leaf2 to spine1 is down", "CRITICAL, active"),
    ],
)
def test_the_best_result_is_the_object_of_that_name(
    index: SearchIndex, query: str, kind: str, name: str, detail: str
) -> None:
    first = index.find(query)[0]
    assert (first.kind, first.name, first.detail) == (kind, name, detail)


def test_a_name_leads_to_all_kinds_that_contain_it(index: SearchIndex) -> None:
    assert kinds(index, "h3") == ["host", "NIC", "link", "flow"]
    assert kinds(index, "leaf2") == ["switch", "link", "alert"]
    assert kinds(index, "train-7") == ["job", "alert"]


@pytest.mark.parametrize("query", ["", "   ", "nosuch", "\n", "<script>"])
def test_other_texts_match_nothing(index: SearchIndex, query: str) -> None:
    assert index.find(query) == []


def test_names_are_in_natural_order_and_exact_ones_first() -> None:
    names = Names(["h2", "h3", "h10", "h20"], lambda key: [key])
    assert list(names.find("h2", 9)) == ["h2", "h20"]
    assert list(names.find("h", 3)) == ["h2", "h3", "h10"]
    assert names.find("0", 9) == {"h10": 2, "h20": 2}


def test_a_query_takes_few_scans_of_ten_thousand_names() -> None:
    """All names match, and the last name alone: neither looks at names one by one."""
    names = Names([f"h{k}/eth{k % 8}" for k in range(OBJECTS)], lambda key: [key, f"{key} again"])
    names.text = CountedText(names.text)
    for query in ("h", "eth", "h9999/eth7", "nosuch", "/"):
        CountedText.scans = 0
        names.find(query, KIND_LIMIT)
        assert CountedText.scans <= 4 * (KIND_LIMIT + 1) + 3


def test_a_query_indexes_only_changed_kinds(state: FabricState, fabric: Any) -> None:
    now_s = [0.0]
    index = SearchIndex(state, lambda: now_s[0])
    fill(state, *fabric.fleet(peers=1))
    index.find("h1")
    first = index.rebuilds
    index.find("h2")
    assert index.rebuilds == first
    alert = fabric.alert("h1", "h1 is down")
    fill(state, ("fabric.alerts", alert["alert_id"], alert))
    index.find("h1")
    assert index.rebuilds == first, "within the shortest time between two indexings"
    now_s[0] += MIN_REBUILD_S
    assert "alert" in kinds(index, "is down")
    assert index.rebuilds == first + 1


def test_an_object_that_is_gone_is_still_a_result_without_details(
    index: SearchIndex, state: FabricState
) -> None:
    index.find("h3/eth1")
    state.nics.pop("h3/eth1")
    assert index.find("h3/eth1")[0].detail == ""


TEXTS = st.text(st.sampled_from("ah1/>< \nß→"), max_size=12)


@given(st.lists(TEXTS, max_size=8, unique=True), TEXTS)
def test_every_match_contains_the_query(keys: list[str], query: str) -> None:
    text = normalised(query)
    if text:
        matches = Names(keys, lambda key: [key]).find(text, 100)
        flat = {key: key.lower().replace("\n", " ") for key in keys}
        assert set(matches) == {key for key in keys if text in flat[key]}
        assert all(rank != 0 or flat[key] == text for key, rank in matches.items())
