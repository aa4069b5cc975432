"""Limits of packet size on paths without names: the stated set, its end, and what raises nothing."""

from __future__ import annotations

from fabrictime.bench.networks.answers import Form
from schemas.topology import Topology
from streams.links.health.shard_health import ShardHealth
from streams.links.localise.sizes import MAX_WAIT_NS, PathSizes
from streams.links.localise.unnamed_sizes import UnnamedLimit, find_unnamed_limit, unnamed_limits
from tests.streams.links.localise.test_sizes import Route, event
from tests.streams.links.localise.test_unexplained import Hidden, S

SUBJECT = "sizes@fabric"


class Gaps:
    """Routes of hosts on leaves: their spines are unknown, but for the paths in `whole`."""

    def __init__(self) -> None:
        self.version = 1
        self.whole: dict[tuple[str, str, int], Route] = {}
        self.in_part: dict[tuple[str, str, int], Route] = {}

    def forward(self, nic: str, peer: str, path: int) -> Route:
        return self.whole.get((nic, peer, path), ())

    def known(self, nic: str, peer: str, path: int) -> tuple[Route, Route]:
        default = (f"{nic.replace('/', ':')}>leaf1:1", f"leaf2:1>{peer.replace('/', ':')}")
        return self.forward(nic, peer, path) or self.in_part.get((nic, peer, path), default), ()


def checked(*rows: tuple[str, str, int, int, int]) -> PathSizes:
    """Return the state after (nic, peer, path, passed, second) each."""
    sizes = PathSizes()
    for nic, peer, path, passed, second in rows:
        sizes.ingest(event(nic, peer, path, passed), second * S, Gaps())  # type: ignore[arg-type]
    return sizes


def found(
    sizes: PathSizes, routes: Gaps, second: int = 10, named: frozenset[str] = frozenset()
) -> UnnamedLimit | None:
    limited = unnamed_limits(sizes, routes, named)  # type: ignore[arg-type]
    return find_unnamed_limit(limited, sizes, routes, Topology(), second * S)  # type: ignore[arg-type]


LIMITED = (("a/e", "x/e", 1, 1400, 1), ("b/e", "y/e", 1, 1300, 2))
PASSING = (("a/e", "x/e", 2, 1500, 2), ("b/e", "y/e", 2, 1500, 3))


def test_paths_with_gaps_state_size_and_switches() -> None:
    it = found(checked(*LIMITED, *PASSING), Gaps())
    assert it is not None
    assert (it.paths, it.nics, it.passed_bytes, it.probed_bytes, it.since_ns) == (2, 2, 1300, 1500, S)
    assert it.candidates == ("leaf1", "leaf2")


def test_one_path_is_no_limit_of_the_network() -> None:
    assert found(checked(LIMITED[0], *PASSING), Gaps(), 1_000) is None


def test_one_nic_alone_is_waited_for() -> None:
    sizes = checked(("a/e", "x/e", 1, 1400, 1), ("a/e", "y/e", 1, 1400, 1))
    assert found(sizes, Gaps(), 10) is None
    late = found(sizes, Gaps(), 1 + MAX_WAIT_NS // S)
    assert late is not None
    assert late.nics == 1


def test_a_named_link_on_the_known_part_explains_a_path() -> None:
    assert found(checked(*LIMITED), Gaps(), named=frozenset({"a:e>leaf1:1", "b:e>leaf1:1"})) is None


def test_a_path_with_a_route_known_since_is_left_to_its_links() -> None:
    routes = Gaps()
    for nic, peer, path, *_ in LIMITED:
        routes.whole[nic, peer, path] = ("a:e>leaf1:1", "leaf1:9>leaf2:9", "leaf2:1>x:e")
    assert found(checked(*LIMITED), routes) is None


def test_a_name_that_stands_for_several_cables_explains_nothing() -> None:
    """A tunnel: each path is known as leaf to leaf, and large packets pass on one of them."""
    routes, sizes = Gaps(), PathSizes()

    def check(nic: str, peer: str, path: int, passed: int, second: int) -> None:
        ends = nic.replace("/", ":"), peer.replace("/", ":")
        routes.whole[nic, peer, path] = (f"{ends[0]}>leaf1:1", "leaf1:9>leaf2:9", f"leaf2:1>{ends[1]}")
        sizes.ingest(event(nic, peer, path, passed), second * S, routes)  # type: ignore[arg-type]

    for nic, peer in (("a/e", "x/e"), ("b/e", "y/e")):
        check(nic, peer, 1, 1400, 1)
        check(nic, peer, 2, 1500, 2)
    assert found(sizes, routes) is None  # the limit may have ended: the paths were not checked since
    check("a/e", "x/e", 1, 1400, 14)
    check("b/e", "y/e", 1, 1400, 14)
    it = found(sizes, routes, 15)
    assert it is not None
    assert it.candidates == ("leaf1", "leaf2")


def test_the_text_has_size_place_and_mtu() -> None:
    text = UnnamedLimit(2, 1, 1400, 9000, 1400, 0, ()).text("12:00:00")
    assert text == (
        "2 paths of 1 NIC drop packets above 1,400 bytes (NICs send 9,000) since 12:00:00, "
        "a router states an MTU of 1,400 bytes; no known link explains it; nothing is known of their routes"
    )


class Fleet(Hidden):
    """A small fleet whose spines answer no trace, with a topology file, and size probes."""

    def __init__(self) -> None:
        super().__init__(Form.SILENT, True, paths=4, rate_hz=100.0, sizes=True)

    def limit(self, size: int) -> None:
        self.probes.mtu_bytes[self.link("leaf1", "spine2")] = size

    def run_until(self, state: str) -> None:
        for _ in range(60):
            if self.records.get(SUBJECT, [{"state": "UP"}])[-1]["state"] == state:
                return
            self.run(S)
        raise AssertionError(self.records.get(SUBJECT))


def test_a_hidden_limit_is_stated_until_large_packets_pass_also_by_a_new_owner() -> None:
    it = Fleet()
    it.limit(1500)
    it.run_until("GREY")
    record = it.records[SUBJECT][-1]
    assert (record["kind"], record["max_packet_bytes"], record["loss_rate"]) == ("PATHS", 1500, None)
    assert "drop packets above 1,500 bytes (NICs send 9,000)" in record["text"]
    assert "leaf1:swp4<>spine2:swp1" in record["candidates"]
    assert all("<>" in each for each in record["candidates"])
    assert "losses@fabric" not in it.records  # small packets pass
    it.health = ShardHealth("fabric")
    it.health.recover([record])
    it.run(5 * S)
    assert it.health.subjects[SUBJECT].state == "GREY"
    assert it.health.subjects[SUBJECT].max_packet_bytes == 1500
    it.limit(9000)
    it.run_until("UP")
    assert it.records[SUBJECT][-1]["max_packet_bytes"] is None
