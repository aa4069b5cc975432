"""The log of the bench moves to another address behind its name."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabrictime.bench.field._remade_storage import BROKER_ADDRESSES, BROKER_NAME, moving_log
from tests.waiting import wait_until


def test_the_log_answers_at_its_name_after_a_move(inside: Callable[..., Any], tmp_path: Path) -> None:
    def body() -> tuple[list[str], str]:
        reached: list[str] = []

        def is_reached(url: str) -> bool:
            name, _, port = url.partition(":")
            try:
                with socket.create_connection((name, int(port)), 5) as connection:
                    reached.append(connection.getpeername()[0])
            except ConnectionRefusedError:
                return False
            return True

        with moving_log(tmp_path) as log:
            wait_until(lambda: is_reached(log.url))
            log.move()
            wait_until(lambda: is_reached(log.url))
        return reached, Path("/etc/hosts").read_text(encoding="utf-8")

    reached, hosts = inside(body)
    assert tuple(reached) == BROKER_ADDRESSES
    assert BROKER_NAME not in hosts
