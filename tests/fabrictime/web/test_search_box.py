"""Each result of a search opens in the tab of its kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.search_index import Kind, Result
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.search_box import SearchBox, result_address
from tests.fabrictime.fill import fill


@pytest.mark.parametrize(
    ("kind", "key", "address"),
    [
        ("host", "h1", "/fabric?node=h1"),
        ("NIC", "h1/eth1", "/fabric?node=h1"),
        ("switch", "leaf1", "/fabric?node=leaf1"),
        ("rack", "r1", "/fabric?rack=r1"),
        ("link", "leaf1:swp3>spine1:swp1", "/fabric?link=leaf1%3Aswp3%3Espine1%3Aswp1"),
        ("job", "a&b", "/jobs?job=a%26b"),
        ("flow", "h1/boot/sock:1", "/actions?flow=h1%2Fboot%2Fsock%3A1"),
        ("alert", "LINK_DOWN:x:1", "/alerts?alert=LINK_DOWN%3Ax%3A1"),
    ],
)
def test_a_result_has_the_address_of_its_object(kind: Kind, key: str, address: str) -> None:
    assert result_address(Result(kind, key, key, "")) == address


def test_the_field_shows_the_results_of_the_last_query(
    page_client: Any, state: FabricState, fabric: Any
) -> None:
    fill(state, *fabric.fleet(peers=1))
    live = LiveFabric(state, lambda: ConsumerStatus(caught_up=True), lambda: fabric.now_ns, Verdict)
    box = SearchBox(lambda: live)

    class Event:
        def __init__(self, args: object) -> None:
            self.args = args

    async def typed(*queries: object) -> None:
        await asyncio.gather(*(box._on_query(Event(query)) for query in queries))  # type: ignore[arg-type]

    assert box.state() == {"query": None, "rows": []}
    asyncio.run(typed("h", "h3/eth1"))
    assert box.state()["query"] == "h3/eth1"
    assert box.state()["rows"][0] == ["NICs", "h3/eth1", "rack r2, 1.00 Gbit/s", "/fabric?node=h3"]
    asyncio.run(typed(None))
    assert box.state()["rows"] == []
    asyncio.run(typed("x" * 100_000))
    assert len(box.state()["query"]) == 200
