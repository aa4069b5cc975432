"""Programs of the bench take the process id of one that ended, and end with the bench."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.bench.field._remade_processes import Programs, end, process_name
from fabrictime.testbed.processes.process_ids import enter_own_ids


def test_a_program_takes_the_id_of_another(inside: Callable[..., Any]) -> None:
    def body() -> str | tuple[str, str, bool]:
        denied = enter_own_ids()
        if denied is not None:
            return denied
        first = subprocess.Popen(["sleep", "60"])
        name = process_name(first.pid)
        end(first)
        with Programs() as programs:
            programs.take_id(first.pid)
            assert programs.are_running()
            other = process_name(first.pid)
        return name, other, os.path.exists(f"/proc/{first.pid}")

    answer = inside(body)
    if isinstance(answer, str):
        pytest.skip(answer)
    name, other, is_left = answer
    assert name.partition("-")[0] == other.partition("-")[0]
    assert not is_left
