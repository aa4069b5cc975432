"""Processes under chosen ids, in a namespace of process ids."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.testbed.processes.process_ids import enter_own_ids, start_at


def test_a_free_process_id_is_given_to_another_program(inside: Callable[..., Any]) -> None:
    def body() -> str | tuple[int, list[int], str]:
        denied = enter_own_ids()
        if denied is not None:
            return denied
        first = subprocess.Popen(["sleep", "60"])
        with pytest.raises(OSError, match=rf"^process id {first.pid}: held by another process"):
            start_at(first.pid, ["true"])
        first.kill()
        first.wait()
        second = start_at(first.pid, ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert second.stdin is not None
        assert second.stdout is not None
        second.stdin.write(b"a line\n")
        second.stdin.flush()
        second.stdout.readline()  # Popen returns during exec, before the process has its new name
        with open(f"/proc/{second.pid}/comm", encoding="ascii") as file:
            name = file.read()
        second.communicate()
        return os.getpid(), [first.pid, second.pid], name

    answer = inside(body)
    if isinstance(answer, str):
        pytest.skip(answer)
    own, (first, second), name = answer
    assert own == 1
    assert first == second
    assert name == "cat\n"


def test_the_reason_is_returned_where_no_namespace_is_allowed(
    inside: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("fabrictime.testbed.processes.process_ids._denial_number", lambda: 1)
    assert inside(enter_own_ids) == "a namespace of process ids: Operation not permitted"
