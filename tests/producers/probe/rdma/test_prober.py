"""Askers against each other over a network of the test's: delays, losses, clocks and stamps as it likes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

import pytest

from producers.probe.rdma.gids import UdPath
from producers.probe.rdma.packets import BYTES, COLLECT, REPLY, REQUEST, Address, Packet, name_hash, pack
from producers.probe.rdma.prober import OutgoingPacket, UdPeer, UdProber, UdProberSettings

KEY = bytes(range(16))
SYSTEM_NS = 1_700_000_000_000_000_000
DELAY_NS = 40_000
Lose = Callable[[str, int, bytes], bool]


def keep(sender: str, path: int, data: bytes) -> bool:
    return False


class Nic:
    def __init__(
        self, net: Net, name: str, number: int, paths: int, hardware: bool, ahead_ns: int, **more: float
    ) -> None:
        self.name, self.hardware, self.ahead_ns, self.gid = name, hardware, ahead_ns, bytes([number]) * 16
        numbers = range(number * 100, number * 100 + paths)
        own = [(UdPath(i, n, 50_176 + i, 1, 0, True), Address(self.gid, 0, n)) for i, n in enumerate(numbers)]
        self.address = UdPeer(name, self.gid, 0, 0, tuple(numbers))
        given = {
            "rate_pps": 1000.0,
            "timeout_ns": 10_000_000,
            "answer_max_pps": 100_000.0,
            "max_age_ns": 10**12,
        }
        settings = UdProberSettings(**(given | more), hardware=hardware)
        self.prober = UdProber(name, number, KEY, own, settings, number, net.now_ns)


class Net:
    """Delivers in order of time. `lose(sender, path, bytes)` says what is lost."""

    def __init__(self) -> None:
        self.now_ns, self.nics, self.lose = 0, dict[str, Nic](), keep
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.unstamped: set[str] = set()
        self.sizes: dict[str, list[int]] = {}

    def add(self, name: str, paths: int = 2, hardware: bool = False, ahead_ns: int = 0, **more: float) -> Nic:
        self.nics[name] = Nic(self, name, len(self.nics) + 1, paths, hardware, ahead_ns, **more)
        return self.nics[name]

    def after(self, delay_ns: int, message: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ns + delay_ns, next(self._count), message))

    def meet(self, names: Iterable[str]) -> None:
        nics = [self.nics[name] for name in names]
        for nic in nics:
            nic.prober.set_peers([other.address for other in nics if other is not nic], self.now_ns)

    def run(self, ms: float) -> None:
        end = self.now_ns + int(ms * 1e6)
        while True:
            times = [(at, nic) for nic in self.nics.values() if (at := nic.prober.next_ns()) is not None]
            poll, nic = min(times, key=lambda each: each[0], default=(end + 1, None))
            at = self._queue[0][0] if self._queue else end + 1
            if min(poll, at) > end:
                self.now_ns = end
                return
            self.now_ns = max(self.now_ns, min(poll, at))
            if at <= poll:
                heapq.heappop(self._queue)[2]()
            elif nic is not None:
                for out in nic.prober.poll(self.now_ns, SYSTEM_NS + self.now_ns):
                    self.send(nic, out)

    def send(self, nic: Nic, out: OutgoingPacket) -> None:
        own = nic.address.numbers[out.path]
        data = nic.prober.pack(out, self.clock(nic))
        self.sizes.setdefault(nic.name, []).append(len(data))
        if out.token is not None and nic.name not in self.unstamped:
            stamp = self.clock(nic)
            self.after(
                1_000, lambda: nic.prober.on_timestamp(out.token, stamp + (0 if nic.hardware else 1_000))
            )
        if not self.lose(nic.name, out.path, data):
            self.after(DELAY_NS, lambda: self.deliver(out.to, data, Address(nic.gid, 0, own)))

    def deliver(self, to: Address, data: bytes, source: Address) -> None:
        nic = next(each for each in self.nics.values() if each.gid == to.gid)
        path = nic.address.numbers.index(to.number)
        answer = nic.prober.receive(path, data, source, self.clock(nic), self.now_ns, SYSTEM_NS + self.now_ns)
        if answer is not None:
            self.after(5_000, lambda: self.send(nic, answer))

    def clock(self, nic: Nic) -> int:
        return SYSTEM_NS + self.now_ns + nic.ahead_ns


@pytest.mark.parametrize(("a", "b"), [(False, False), (True, True), (True, False), (False, True)])
def test_samples_are_delays_plus_the_clocks_difference_whoever_stamps(a: bool, b: bool) -> None:
    net = Net()
    net.add("a/x", hardware=a)
    net.add("b/x", hardware=b, ahead_ns=3_000_000)
    net.meet(["a/x", "b/x"])
    net.run(200)
    found = net.nics["a/x"].prober.drain()
    assert set(found) == {("b/x", 50_176), ("b/x", 50_177)}
    for group in found.values():
        assert len(group.sent) > 50
        assert (group.lost, group.no_t3) == (0, 0)
        assert set(group.forward) == {DELAY_NS + 3_000_000}
        assert set(group.reverse) == {DELAY_NS - 3_000_000}
        assert set(group.turnaround) == {5_000}
        assert group.sent == sorted(group.sent)
    assert net.nics["a/x"].prober.stamp_error_ns == (0 if a else 1_000)
    assert net.nics["a/x"].prober.counters["late"] == 0


def test_a_path_that_loses_is_the_only_one_that_has_lost() -> None:
    net = Net()
    for name in ("a/x", "b/x"):
        net.add(name, paths=4)
    net.meet(["a/x", "b/x"])
    net.lose = lambda sender, path, data: sender == "a/x" and path == 2
    net.run(200)
    prober = net.nics["a/x"].prober
    before = prober.drain()
    dead = before.pop(("b/x", 50_178))
    assert dead.lost > 20
    assert not dead.sent
    assert all(group.lost == 0 and len(group.sent) > 20 for group in before.values())
    net.lose = keep
    net.run(50)
    prober.drain()
    net.run(50)
    assert prober.drain()[("b/x", 50_178)].lost == 0


def test_follow_ups_that_are_lost_are_no_loss_of_the_path() -> None:
    net = Net()
    for name in ("a/x", "b/x"):
        net.add(name, hardware=True)
    net.meet(["a/x", "b/x"])
    net.lose = lambda sender, path, data: data[3] == COLLECT
    net.run(200)
    found = net.nics["a/x"].prober.drain().values()
    assert sum(group.no_t3 for group in found) > 50
    assert sum(group.lost for group in found) == 0
    assert not any(group.sent for group in found)


def test_requests_that_never_left_the_host_are_no_loss() -> None:
    net = Net()
    for name in ("a/x", "b/x"):
        net.add(name, hardware=True)
    net.meet(["a/x", "b/x"])
    net.unstamped = {"a/x"}
    net.lose = lambda sender, path, data: sender == "a/x"
    net.run(100)
    prober = net.nics["a/x"].prober
    assert prober.drain() == {}
    assert prober.counters["no_t1"] > 50


def test_no_packet_is_longer_than_another() -> None:
    net = Net()
    for name in ("a/x", "b/x"):
        net.add(name, hardware=True)
    net.meet(["a/x", "b/x"])
    net.run(50)
    assert {size for sizes in net.sizes.values() for size in sizes} == {BYTES}
    target_hash = net.nics["a/x"].prober.counters
    reported = net.nics["b/x"].prober.counters
    assert reported["replies_sent"] <= target_hash["requests_sent"]
    assert reported["followups_sent"] <= target_hash["collects_sent"]


def answer_of(
    prober: UdProber, kind: int, target_hash: str, system_ns: int, key: bytes = KEY, now_ns: int = 0
) -> OutgoingPacket | None:
    source, target = Address(b"\x09" * 16, 0, 900), Address(b"\x01" * 16, 0, 100)
    data = pack(Packet(kind, 1, 5, name_hash(target_hash), system_ns, 0), key, source, target)
    return prober.receive(0, data, source, 0, now_ns, SYSTEM_NS)


def test_invalid_requests_get_no_answer() -> None:
    prober = Net().add("a/x", max_age_ns=10**9).prober
    assert answer_of(prober, REQUEST, "a/x", SYSTEM_NS) is not None
    assert answer_of(prober, REQUEST, "a/x", SYSTEM_NS, key=bytes(16)) is None
    assert answer_of(prober, REQUEST, "b/x", SYSTEM_NS) is None
    assert answer_of(prober, REQUEST, "a/x", SYSTEM_NS - 2 * 10**9) is None
    assert answer_of(prober, COLLECT, "a/x", SYSTEM_NS) is None
    assert answer_of(prober, REPLY, "a/x", SYSTEM_NS) is None
    names = ("bad_mac", "wrong_nic", "stale_time", "unknown_tickets", "stale_run")
    assert [prober.counters[name] for name in names] == [1, 1, 1, 1, 1]


def test_answers_are_capped_and_go_on_later() -> None:
    prober = Net().add("a/x", answer_max_pps=100.0).prober
    answered = sum(answer_of(prober, REQUEST, "a/x", SYSTEM_NS) is not None for _ in range(500))
    assert answered == 64
    assert prober.counters["answers_capped"] == 436
    later = sum(answer_of(prober, REQUEST, "a/x", SYSTEM_NS, now_ns=10**8) is not None for _ in range(500))
    assert later == 10, "100 a second, after a tenth of one"


def test_a_reply_from_somebody_else_is_none() -> None:
    net = Net()
    prober = net.add("a/x", rate_pps=100.0).prober
    net.add("b/x")
    net.add("c/x")
    prober.set_peers([net.nics["b/x"].address], 0)
    (out, *_) = [each for ns in range(0, 10**9, 10**6) for each in prober.poll(ns, SYSTEM_NS + ns)][:1]
    prober.pack(out, SYSTEM_NS)
    falseticker, own = Address(net.nics["c/x"].gid, 0, 300), Address(net.nics["a/x"].gid, 0, 100 + out.path)
    data = pack(out.packet._replace(kind=REPLY, first=1, second=2), KEY, falseticker, own)
    prober.receive(out.path, data, falseticker, 0, 0, SYSTEM_NS)
    assert prober.counters["late"] == 1
    assert prober.counters["replies_received"] == 0


def test_a_peer_that_is_left_is_neither_lost_nor_asked() -> None:
    net = Net()
    for name in ("a/x", "b/x", "c/x"):
        net.add(name)
    net.meet(["a/x", "b/x", "c/x"])
    net.run(100)
    prober = net.nics["a/x"].prober
    net.lose = lambda sender, path, data: True
    net.run(5)
    prober.set_peers([net.nics["b/x"].address], net.now_ns)
    prober.drain()
    net.run(100)
    assert {peer for peer, _ in prober.drain()} == {"b/x"}


def test_a_process_that_was_away_does_not_catch_up_in_a_burst() -> None:
    net = Net()
    prober = net.add("a/x").prober
    net.add("b/x")
    prober.set_peers([net.nics["b/x"].address], 0)
    assert len(prober.poll(10**9, SYSTEM_NS)) <= 2
    assert prober.counters["missed_timers"] > 900


def test_stamps_that_cannot_be_are_no_samples() -> None:
    net = Net()
    net.add("a/x")
    net.add("b/x", ahead_ns=-SYSTEM_NS - 2**63 + 10**6)
    net.meet(["a/x", "b/x"])
    net.run(20)
    found = net.nics["a/x"].prober.drain().values()
    assert not any(group.sent for group in found)
    assert net.nics["a/x"].prober.counters["unsound_stamps"] > 5
    assert sum(group.lost for group in found) == 0
