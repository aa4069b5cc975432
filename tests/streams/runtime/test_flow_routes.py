"""The table of flow routes: data from the sender's record, acknowledgements from the receiver's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from streams.runtime.flow_routes import NO_ROUTES, FlowRoute, FlowRouteTable

OUT = ("a:eth0>leaf1:1", "leaf1:9>spine1:1", "spine1:2>leaf2:9", "leaf2:1>b:eth0")
OUT2 = ("a:eth0>leaf1:1", "leaf1:8>spine2:1", "spine2:2>leaf2:8", "leaf2:1>b:eth0")
BACK = ("b:eth0>leaf2:1", "leaf2:8>spine2:2", "spine2:1>leaf1:8", "leaf1:1>a:eth0")


def row(leg: str, port: int, hops: tuple[str, ...], peer_port: int = 80, **more: Any) -> dict[str, Any]:
    return {
        "leg": leg,
        "path": port,
        "peer_port": peer_port,
        "links": list(hops),
        "complete": True,
        "since_ns": 1,
        "protocol": "TCP",
        **more,
    }


def flow_routes(nic: str, peer: str, *rows: dict[str, Any]) -> bytes:
    return codec.encode(
        "FlowRoutes",
        {
            "nic": nic,
            "peer": peer,
            "shard": "fabric",
            "traced_ns": 1,
            "routes": list(rows),
        },
    )


def test_a_route_joins_the_senders_and_the_receivers_trace() -> None:
    book = FlowRouteTable()
    book.take(b"a/e>b/e", flow_routes("a/e", "b/e", row("DATA", 61_000, OUT), row("DATA", 61_001, OUT2)))
    assert book.of("a/e", "b/e", 80) == {61_000: FlowRoute(OUT), 61_001: FlowRoute(OUT2)}
    assert book.of("a/e", "b/e", 81) == book.of("b/e", "a/e", 80) == {}
    book.take(b"b/e>a/e", flow_routes("b/e", "a/e", row("ACK", 61_001, BACK)))
    assert book.of("a/e", "b/e", 80) == {61_000: FlowRoute(OUT), 61_001: FlowRoute(OUT2, BACK)}
    assert book.of("a/e", "b/e", 80)[61_001].all_links == OUT2 + BACK
    assert book.of("b/e", "a/e", 80) == {}, "an answer is no flow of its own"


def test_incomplete_routes_are_ignored() -> None:
    book = FlowRouteTable()
    book.take(
        b"a/e>b/e", flow_routes("a/e", "b/e", row("DATA", 1, OUT[:2], complete=False), row("DATA", 2, ()))
    )
    assert book.of("a/e", "b/e", 80) == {}
    assert book.of("x/e", "y/e", 80) is NO_ROUTES


def test_the_version_grows_when_a_flow_route_changes_and_at_a_tombstone() -> None:
    book = FlowRouteTable()
    record = flow_routes("a/e", "b/e", row("DATA", 1, OUT))
    book.take(b"a/e>b/e", record)
    version = book.version
    book.take(b"a/e>b/e", record)
    assert book.version == version
    book.take(b"a/e>b/e", None)
    assert book.version > version
    assert book.of("a/e", "b/e", 80) == {}
    book.take(None, None)


@pytest.mark.parametrize("link", ["leaf1", "a:1>b:1>c:1", ">b:1", "a:1>"])
def test_a_record_that_names_no_link_is_refused_and_changes_nothing(link: str) -> None:
    book = FlowRouteTable()
    book.take(b"a/e>b/e", flow_routes("a/e", "b/e", row("DATA", 1, OUT)))
    with pytest.raises(codec.BadRecord, match=r"FlowRoutes\.hops"):
        book.take(b"a/e>b/e", flow_routes("a/e", "b/e", row("DATA", 1, (link,))))
    assert book.of("a/e", "b/e", 80) == {1: FlowRoute(OUT)}


@pytest.mark.parametrize(
    ("key", "value"), [(b"a/e", None), (b"", None), (b"a>b>c", None), (b"a/e>b/e", b"\xc3\x01nonsense")]
)
def test_an_invalid_message_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(codec.BadRecord):
        FlowRouteTable().take(key, value)


NICS = ("a/e", "b/e", "c/e")
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["DATA", "ACK"]),
        st.integers(1, 4),
        st.integers(80, 81),
        st.sampled_from([OUT, OUT2]),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each[:3],
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(NICS), st.sampled_from(NICS), st.one_of(st.none(), ROWS)), max_size=12
)


@given(MESSAGES)
def test_only_the_newest_record_of_each_pair_counts(
    messages: list[tuple[str, str, list[tuple[str, int, int, tuple[str, ...], bool]] | None]],
) -> None:
    asked, plain = FlowRouteTable(), FlowRouteTable()
    newest: dict[tuple[str, str], dict[tuple[str, int, int], tuple[str, ...]]] = {}
    for nic, peer, rows in messages:
        value = None
        if rows is not None:
            value = flow_routes(
                nic, peer, *(row(leg, port, hops, to, complete=whole) for leg, port, to, hops, whole in rows)
            )
        newest[nic, peer] = {(leg, to, port): hops for leg, port, to, hops, whole in rows or () if whole}
        for book in (asked, plain):
            book.take(f"{nic}>{peer}".encode(), value)
        for one in NICS:
            for other in NICS:
                asked.of(one, other, 80)
    for nic in NICS:
        for peer in NICS:
            for to in (80, 81):
                there, reverse = newest.get((nic, peer), {}), newest.get((peer, nic), {})
                expected = {
                    port: FlowRoute(hops, reverse.get(("ACK", to, port), ()))
                    for (leg, at, port), hops in there.items()
                    if leg == "DATA" and at == to
                }
                assert asked.of(nic, peer, to) == plain.of(nic, peer, to) == expected
