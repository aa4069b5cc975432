"""Control sockets: results one by one, refusals in one line, and no client that stops the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.control_socket import ControlServer, Request, exchange
from schemas.ipc import connect
from tests.waiting import wait_until


class Refused(Exception):
    pass


def count(request: Request) -> Iterator[int]:
    yield from range(request["until"])


def refuse(request: Request) -> Iterator[int]:
    yield 0
    raise Refused("not\nnow")


def fail(request: Request) -> Iterator[int]:
    raise RuntimeError("a defect\nof two lines")
    yield 0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "control.sock"
    server = ControlServer(path, "test", {"count": count, "refuse": refuse, "fail": fail}, (Refused,))
    yield path
    server.close()
    assert not path.exists()


def answers(path: Path, command: str, **values: int) -> list[dict[str, object]]:
    return list(exchange(connect(path, 10.0), command, values))


def test_each_result_is_an_answer(path):
    assert answers(path, "count", until=2) == [{"ok": True, "result": 0}, {"ok": True, "result": 1}]


def test_a_refusal_is_one_line_after_the_results_so_far(path):
    assert answers(path, "refuse") == [{"ok": True, "result": 0}, {"ok": False, "error": "not now"}]
    assert answers(path, "count") == [{"ok": False, "error": "missing 'until'"}]
    assert "expected a command of count, refuse, fail" in str(answers(path, "stop"))


def test_a_silent_client_delays_no_other(path):
    with connect(path, 10.0):
        assert answers(path, "count", until=1) == [{"ok": True, "result": 0}]


def test_a_defect_of_a_command_is_an_answer_too(path):
    assert answers(path, "fail") == [{"ok": False, "error": "RuntimeError: a defect of two lines"}]
    assert answers(path, "count", until=1) == [{"ok": True, "result": 0}]


def test_a_removed_socket_serves_again(path: Path) -> None:
    path.unlink()
    wait_until(path.exists, 10.0)
    assert answers(path, "count", until=1) == [{"ok": True, "result": 0}]
