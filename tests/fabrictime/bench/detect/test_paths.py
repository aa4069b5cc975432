"""The share of published paths that are right, against a fabric whose routes are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.bench.detect.paths import PROVEN, _Comparison

NICS = {
    name: {"nic": name, "host": name.partition("/")[0], "path_ports": [1, 2], "probe_port": 9}
    for name in ("h1/a", "h1/b", "h2/a")
}


class Control:
    """A fabric that knows its routes; real packets of port 2 take another one."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, command: str, **given: Any) -> Any:
        if command == "show":
            return {"nics": list(NICS.values())}
        self.asked += 1
        proven = not given["likely"] and 2 in (given["sport"], given["dport"])
        return (
            ["elsewhere"]
            if proven
            else [route(given["source"], given["destination"], given["sport"], given["dport"])]
        )


def route(source: str, destination: str, sport: int, dport: int) -> str:
    return f"{source}:{sport}>{destination}:{dport}"


@pytest.fixture
def reader() -> Any:
    def forward(nic: str, peer: str, port: int) -> tuple[str, ...]:
        return (route(nic, peer, port, 9),)

    def reverse(nic: str, peer: str, port: int) -> tuple[str, ...]:
        return (route(peer, nic, 9, port),)

    book = SimpleNamespace(forward=forward, reverse=reverse)
    return SimpleNamespace(nics=lambda: NICS, follow=lambda seconds: False, book=book)


def test_paths_between_hosts_count_in_both_directions(reader: Any) -> None:
    control = Control()
    comparison = _Comparison(control, reader)  # type: ignore[arg-type]
    assert comparison.share() == 1
    assert comparison.path_count == 16, "four pairs between two hosts, two ports, two directions"
    comparison.share()
    assert control.asked == len(comparison.truth), "the truth is asked for once"


def test_a_wrong_or_unknown_path_lowers_the_share(reader: Any) -> None:
    reader.book.forward = lambda nic, peer, port: ()
    assert _Comparison(Control(), reader).share() == 0.5  # type: ignore[arg-type]
    reader.nics = lambda: {"h1/a": NICS["h1/a"]}
    assert _Comparison(Control(), reader).share() == 0, "a NIC that has not announced itself"  # type: ignore[arg-type]


def test_packets_that_take_another_route_prove_nothing(reader: Any) -> None:
    comparison = _Comparison(Control(), reader)  # type: ignore[arg-type]
    comparison.share()
    assert 0 < comparison.proven() < PROVEN
