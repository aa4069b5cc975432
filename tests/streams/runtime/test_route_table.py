"""The table of probe routes: forward from the prober's record, reverse from the peer's."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from streams.runtime import route_table
from streams.runtime.route_table import CHANGES_KEPT, RouteTable, pair_key, split_pair

OUT = ("a:eth0>leaf1:1", "leaf1:9>spine1:1", "spine1:2>leaf2:9", "leaf2:1>b:eth0")
BACK = ("b:eth0>leaf2:1", "leaf2:8>spine2:2", "spine2:1>leaf1:8", "leaf1:1>a:eth0")


def path(port: int, leg: str, hops: tuple[str, ...], **more: Any) -> dict[str, Any]:
    return {
        "path": port,
        "leg": leg,
        "links": list(hops),
        "found": "TRACED",
        "complete": True,
        "since_ns": 1,
        "changes": 0,
        "contradiction": None,
        **more,
    }


def maps(nic: str, peer: str, *paths: dict[str, Any], traced_ns: int = 1) -> bytes:
    return codec.encode(
        "PathMaps",
        {
            "nic": nic,
            "peer": peer,
            "shard": "fabric",
            "run": 1,
            "traced_ns": traced_ns,
            "paths": list(paths),
        },
    )


def test_the_reverse_route_comes_from_the_peers_trace() -> None:
    book = RouteTable()
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(41000, "REQUEST", OUT)))
    assert book.forward("a/e", "b/e", 41000) == OUT
    assert book.reverse("a/e", "b/e", 41000) == ()
    book.take(b"b/e>a/e", maps("b/e", "a/e", path(41000, "ANSWER", BACK)))
    assert book.reverse("a/e", "b/e", 41000) == BACK
    assert book.forward("b/e", "a/e", 41000) == ()
    assert book.links() == {*OUT, *BACK}


def test_an_incomplete_route_is_returned_by_route_only() -> None:
    book = RouteTable()
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT[:1], complete=False)))
    assert book.forward("a/e", "b/e", 7) == ()
    route = book.route("a/e", "b/e", 7)
    assert (route.links, route.complete, route.found) == (OUT[:1], False, "TRACED")
    assert book.route("a/e", "b/e", 8).found == "UNKNOWN"
    assert book.route("x/e", "b/e", 7, "ANSWER").links == ()


def test_the_version_grows_when_a_route_changes_and_at_a_tombstone() -> None:
    book = RouteTable()
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT)))
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT), traced_ns=2))
    assert book.version == 1
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", BACK, changes=1)))
    assert (book.version, book.forward("a/e", "b/e", 7)) == (2, BACK)
    book.take(b"a/e>b/e", None)
    assert (book.version, book.forward("a/e", "b/e", 7), book.pairs()) == (3, (), [])
    book.take(b"a/e>b/e", None)
    book.take(b"nonsense", None)
    book.take(None, None)
    assert book.version == 3


def test_changed_returns_the_pairs_since_a_version() -> None:
    book = RouteTable()
    assert book.changed(0) == set()
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT)))
    book.take(b"b/e>a/e", maps("b/e", "a/e", path(7, "ANSWER", BACK)))
    assert book.changed(0) == {("a/e", "b/e"), ("b/e", "a/e")}
    assert book.changed(1) == {("b/e", "a/e")}
    book.take(b"a/e>b/e", None)
    assert book.changed(2) == {("a/e", "b/e")}
    assert book.changed(3) == set()
    for n in range(CHANGES_KEPT):
        book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", (OUT, BACK)[n % 2])))
    assert book.changed(2) is None, "older than what is kept: anything may be other"
    assert book.changed(3) == {("a/e", "b/e")}


def test_unused_routes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "NAMES_KEPT", 100)
    book = RouteTable()
    for n in range(1000):
        route = (*OUT[:3], f"leaf2:1>b:eth{n}")
        book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", route)))
        assert book.forward("a/e", "b/e", 7) == route
    assert len(book._names) < 200


@pytest.mark.parametrize("hop", ["", "a:e", ">b:e", "a:e>", "a:e>b:e>c:e"])
def test_a_name_that_is_no_link_is_refused(hop: str) -> None:
    book = RouteTable()
    with pytest.raises(codec.BadRecord, match="node:port>node:port"):
        book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", (hop,))))
    assert book.pairs() == []


def test_a_complete_route_with_a_repeated_link_is_refused() -> None:
    book = RouteTable()
    with pytest.raises(codec.BadRecord, match=r"PathMaps.hops: 'leaf1:9>spine1:1' twice, expected each link"):
        book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", (*OUT[:2], OUT[1], *OUT[2:]))))
    assert book.pairs() == []
    loop = path(7, "REQUEST", (*OUT[:2], OUT[1]), complete=False, contradiction="a link is crossed twice")
    book.take(b"a/e>b/e", maps("a/e", "b/e", loop))
    assert book.forward("a/e", "b/e", 7) == ()


def test_a_key_names_a_directed_pair() -> None:
    assert split_pair(pair_key("a/e", "b/e")) == ("a/e", "b/e")
    for wrong in ("a/e", "a/e>", ">b/e", "a>b>c"):
        with pytest.raises(ValueError, match="nic>peer"):
            split_pair(wrong)
