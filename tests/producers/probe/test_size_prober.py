"""Size probes between two engines on loopback: sizes by both MTUs, the peer's answers, paths that change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from native.core.probe import Engine, Peer, open_sockets
from producers.probe.size_prober import SizeProber
from schemas.records import PathSize

KEY = bytes(range(16))
ADDRESSES = ("127.77.0.1", "127.77.0.2")


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    sockets = [open_sockets(address, 0, 0, 2) for address in ADDRESSES]
    made = [
        Engine(each, nic=f"h{number}/lo", key=KEY, rate_pps=10.0)
        for number, each in enumerate(sockets, start=1)
    ]
    made[0].set_peers([Peer("h2/lo", ADDRESSES[1], sockets[1].port)])
    threads = [threading.Thread(target=engine.run, daemon=True) for engine in made]
    for thread in threads:
        thread.start()
    yield made
    for engine, thread in zip(made, threads, strict=True):
        engine.stop()
        thread.join(10)
        engine.close()


def results(prober: SizeProber, seconds: float, count: int) -> dict[int, PathSize]:
    """Step until there are so many results, at most some seconds."""
    found: dict[int, PathSize] = {}
    end_s = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end_s:
        found |= {row["path"]: row for row in prober.step(time.monotonic())}
        time.sleep(0.01)
    return found


def test_every_path_is_probed_with_the_smaller_mtu(engines: list[Engine]) -> None:
    prober = SizeProber(engines[0], ADDRESSES[0], 50.0, 2000.0)
    assert prober.due_s == float("inf")
    prober.set_mtus(9000, {"h2/lo": 4000})
    found = results(prober, 20.0, 2)
    assert found.keys() == set(engines[0].path_ports)
    assert {(row["probed_bytes"], row["passed_bytes"]) for row in found.values()} == {(4000, 4000)}
    counters = engines[1].counters()
    assert counters["sizes_answered"] >= 2
    assert counters["bytes_answered"] < counters["bytes_asked"]


@pytest.mark.parametrize("mtus", [(None, 9000), (9000, None), (64, 9000)])
def test_without_an_mtu_of_both_nics_nothing_is_sent(
    engines: list[Engine], mtus: tuple[int | None, int | None]
) -> None:
    prober = SizeProber(engines[0], ADDRESSES[0], 50.0, 100.0)
    prober.set_mtus(mtus[0], {"h2/lo": mtus[1]})
    assert results(prober, 0.2, 1) == {}
    assert engines[1].counters()["sizes_answered"] == 0


def test_a_peer_that_leaves_is_probed_no_more(engines: list[Engine]) -> None:
    prober = SizeProber(engines[0], ADDRESSES[0], 50.0, 2000.0)
    prober.set_mtus(9000, {"h2/lo": 9000})
    results(prober, 20.0, 2)
    engines[0].set_peers([])
    prober.set_mtus(9000, {})
    assert prober.due_s == float("inf")
