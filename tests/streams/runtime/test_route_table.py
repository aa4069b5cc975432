"""The table of probe routes: forward from the prober's record, reverse from the peer's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    "hop", ["", "a:e", ">b:e", "a:e>", "a:e>b:e>c:e", "h1/eth1>h2/eth1", ":e>b:e", "a:e>b:"]
)
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


WRONG = (OUT[0], "leaf1:9>@pine1:1", *OUT[2:])


def traced(*nics: str, links: tuple[str, ...] = OUT) -> RouteTable:
    """Several NICs of leaf1 have traced the same links to b."""
    book = RouteTable()
    for nic in nics:
        own = (f"{nic}:eth0>leaf1:{nic}", *links[1:])
        book.take(f"{nic}/e>b/e".encode(), maps(f"{nic}/e", "b/e", path(7, "REQUEST", own)))
    return book


def test_a_record_that_renames_a_cable_against_others_hides_its_own_route_only() -> None:
    book = traced("c", "d")
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT), path(8, "REQUEST", OUT)))
    links, version = book.links(), book.version
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", WRONG), path(8, "REQUEST", OUT)))
    assert book.links() == links
    assert book.changed(version) == {("a/e", "b/e")}
    assert (book.forward("a/e", "b/e", 7), book.forward("a/e", "b/e", 8)) == ((), OUT)
    assert book.known("a/e", "b/e", 7)[0] == (WRONG[0], *WRONG[2:])
    assert not book.route("a/e", "b/e", 7).complete
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", OUT), path(8, "REQUEST", OUT)))
    assert book.forward("a/e", "b/e", 7) == OUT


def test_a_later_record_casts_doubt_on_an_earlier_one() -> None:
    book = traced("c")
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", WRONG)))
    assert book.forward("a/e", "b/e", 7) == WRONG, "one NIC against one"
    version = book.version
    own = ("d:eth0>leaf1:d", *OUT[1:])
    book.take(b"d/e>b/e", maps("d/e", "b/e", path(7, "REQUEST", own)))
    assert book.changed(version) == {("a/e", "b/e"), ("d/e", "b/e")}
    assert book.forward("a/e", "b/e", 7) == ()
    book.take(b"d/e>b/e", None)
    assert book.forward("a/e", "b/e", 7) == WRONG
    assert book.changed(version + 2) == {("a/e", "b/e"), ("d/e", "b/e")}


def test_a_recabled_port_is_followed_by_all_routes() -> None:
    new = (OUT[0], "leaf1:9>spine2:7", "spine2:2>leaf2:8", OUT[3])
    book = traced("a", "c", "d")
    for n, nic in enumerate("acd", 1):
        own = (f"{nic}:eth0>leaf1:{nic}", *new[1:])
        book.take(f"{nic}/e>b/e".encode(), maps(f"{nic}/e", "b/e", path(7, "REQUEST", own)))
        believed = [other for other in "acd" if book.forward(f"{other}/e", "b/e", 7)[1:] == new[1:]]
        assert believed == ([] if n == 1 else list("acd"[:n])), "the second NIC confirms the first"
    assert OUT[1] not in book.links()


def test_a_forgotten_pair_leaves_no_vote() -> None:
    book = traced("c", "d")
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", WRONG)))
    for nic in "acd":
        book.take(f"{nic}/e>b/e".encode(), None)
    assert (book.links(), book.pairs(), len(book)) == (set(), [], 0)
    book.take(b"a/e>b/e", maps("a/e", "b/e", path(7, "REQUEST", WRONG)))
    assert book.forward("a/e", "b/e", 7) == WRONG


def test_records_of_nics_that_no_longer_trace_contradict_nobody() -> None:
    """The hosts c and d are gone without a tombstone, and their cable is on another port now."""
    hour_ns = 3600 * 10**9
    book = RouteTable()
    for nic in "cd":
        own = (f"{nic}:eth0>leaf1:{nic}", *OUT[1:])
        book.take(
            f"{nic}/e>b/e".encode(), maps(f"{nic}/e", "b/e", path(7, "REQUEST", own)), append_ns=hour_ns
        )
    new = (OUT[0], "leaf1:9>spine2:7", "spine2:2>leaf2:8", OUT[3])
    for minutes, believed in ((1, ()), (59, ()), (61, new), (62, new)):
        record = maps("a/e", "b/e", path(7, "REQUEST", new), traced_ns=minutes)
        book.take(b"a/e>b/e", record, append_ns=hour_ns + minutes * 60 * 10**9)
        assert book.forward("a/e", "b/e", 7) == believed
    assert book.forward("c/e", "b/e", 7), "the last known route stays"
    for nic in "acd":
        book.take(f"{nic}/e>b/e".encode(), None)
    assert book.links() == set()


UPLINKS = ("leaf1:9>spine1:1", "leaf1:9>spine1:2", "leaf1:8>spine1:1", "@eaf1:9>spine1:1", "leaf1:?>spine1:1")
STEPS = st.tuples(
    st.sampled_from("abcd"), st.sampled_from("xy"), st.none() | st.lists(st.sampled_from(UPLINKS), max_size=2)
)


@given(st.lists(STEPS, max_size=30))
def test_the_table_follows_from_the_present_records_alone(
    steps: list[tuple[str, str, list[str] | None]],
) -> None:
    """Whatever came before: the order of the records does not matter, and each change is noted."""
    book, records = RouteTable(), dict[tuple[str, str], bytes]()

    def routes(table: RouteTable) -> dict[tuple[str, str], tuple[tuple[str, ...], ...]]:
        pairs = [(f"{nic}/e", f"{peer}/e") for nic in "abcd" for peer in "xy"]
        return {pair: tuple(table.forward(*pair, port) for port in range(2)) for pair in pairs}

    for nic, peer, uplinks in steps:
        key, before, version = (f"{nic}/e", f"{peer}/e"), routes(book), book.version
        if uplinks is None:
            records.pop(key, None)
            book.take(">".join(key).encode(), None)
        else:
            paths = [(f"{nic}:eth0>leaf1:{nic}", link, f"spine1:9>{peer}:eth0") for link in uplinks]
            records[key] = maps(*key, *(path(n, "REQUEST", links) for n, links in enumerate(paths)))
            book.take(">".join(key).encode(), records[key])
        now, changed = routes(book), book.changed(version)
        assert changed is not None
        assert {pair for pair in now if now[pair] != before[pair]} <= set(changed)
    fresh = RouteTable()
    for (nic, peer), record in sorted(records.items(), reverse=True):
        fresh.take(f"{nic}>{peer}".encode(), record)
    assert routes(fresh) == routes(book)
    assert fresh.links() == book.links()
