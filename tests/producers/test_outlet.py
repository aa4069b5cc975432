"""The outlet: bounded room while the log is down, the oldest messages go first, all of it counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from producers.bounded_producer import BoundedProducer


class Log:
    """Stands for librdkafka: takes messages, acknowledges them when told."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, Callable[..., None]]] = []
        self.sent: list[bytes] = []
        self.up = False

    def produce(self, topic: str, *, key: bytes, value: bytes, on_delivery: Any) -> None:
        self.taken.append((value, on_delivery))

    def poll(self, timeout: float) -> int:
        while self.up and self.taken:
            value, report = self.taken.pop(0)
            self.sent.append(value)
            report(None, self)
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 2, 1234

    def flush(self, timeout: float) -> int:
        return self.poll(timeout)

    def purge(self) -> None:
        self.taken.clear()


def numbered(outlet: BoundedProducer, first: int, last: int, size: int = 8) -> None:
    for number in range(first, last):
        outlet.put("t", "k", number.to_bytes(size, "big"))


def test_all_arrives_in_order_while_the_log_is_up() -> None:
    log = Log()
    log.up = True
    outlet = BoundedProducer({}, 100, 10_000, producer=log)
    numbered(outlet, 0, 500)
    assert outlet.close(1) == 0
    assert [int.from_bytes(value, "big") for value in log.sent] == list(range(500))
    assert (outlet.dropped, outlet.failed, outlet.delivered) == (0, 0, 500)


def test_the_oldest_of_those_that_wait_are_dropped_and_the_rest_arrives() -> None:
    log = Log()
    outlet = BoundedProducer({}, 100, 10_000, producer=log)
    numbered(outlet, 0, 1000)
    handed = len(log.taken)
    assert outlet.waiting == 100 + handed
    assert outlet.dropped == 900 - handed
    log.up = True
    assert outlet.close(1) == 0
    got = [int.from_bytes(value, "big") for value in log.sent]
    assert got == [*range(handed), *range(900, 1000)]


def test_bytes_are_bounded_as_well() -> None:
    log = Log()
    outlet = BoundedProducer({}, 10_000, 5000, producer=log)
    numbered(outlet, 0, 1000, size=100)
    assert outlet.waiting - len(log.taken) == 50


def test_giving_up_is_counted() -> None:
    log = Log()
    outlet = BoundedProducer({}, 100, 10_000, producer=log)
    numbered(outlet, 0, 10)
    assert outlet.close(0.01) == 10


def test_the_log_append_time_is_handed_on() -> None:
    log = Log()
    log.up = True
    outlet = BoundedProducer({}, 100, 10_000, producer=log)
    times: list[int] = []
    outlet.put("t", "k", b"x", times.append)
    outlet.poll()
    assert times == [1_234_000_000]
