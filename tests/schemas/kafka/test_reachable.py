"""A log that does not answer is found at once, and one that listens is never refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kafka.reachable import unreachable


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        yield opened


def free_address() -> str:
    """Return an address at which nobody listens; the port stays bound and so is nobody else's."""
    opened = socket.socket()
    opened.bind(("127.0.0.1", 0))
    _BOUND.append(opened)
    return f"127.0.0.1:{opened.getsockname()[1]}"


_BOUND: list[socket.socket] = []


def test_a_refused_connection_is_the_reason() -> None:
    assert unreachable(free_address()) == "connection refused"
    assert unreachable(f"{free_address()},{free_address()}") == "connection refused"


def test_one_broker_that_listens_is_enough(listener: socket.socket) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert unreachable(address) is None
    assert unreachable(f"{free_address()}, {address}") is None


def test_a_broker_that_never_answers_costs_the_wait_alone(listener: socket.socket) -> None:
    listener.listen(0)
    with socket.socket() as first, socket.socket() as second:
        for waiting in (
            first,
            second,
        ):  # the queue of accepted connections is full: further ones get no answer
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        reason = unreachable(f"127.0.0.1:{listener.getsockname()[1]}", 0.2)
    assert reason in ("no answer within 0.2 s", None)  # some kernels queue one more


def test_a_name_that_does_not_exist_is_named() -> None:
    assert (unreachable("no-such-host.invalid:9092") or "").startswith("no-such-host.invalid: ")


@given(st.text("abc1:,[].", max_size=12))
def test_any_text_gives_a_reason_or_none(text: str) -> None:
    if not any(part.rpartition(":")[2].isdecimal() for part in text.split(",")):
        assert unreachable(text, 0.01) is None
