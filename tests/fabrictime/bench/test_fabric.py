"""A fabric for benches: where it does not run, every figure is missing with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fabrictime.bench import Missing, Progress, Value
from fabrictime.bench._fabric import START_S, CannotRun, needs_fabric, wait_running
from fabrictime.runtime import status


def test_a_measurement_without_a_fabric_owes_the_reason_for_each_figure() -> None:
    @needs_fabric(("a", "b"))
    def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
        if quick:
            raise CannotRun("no user namespaces")
        return {"a": 1.0, "b": 2.0}

    assert measure(print) == {"a": 1.0, "b": 2.0}
    assert measure(print, quick=True) == dict.fromkeys(("a", "b"), Missing("no user namespaces"))


@pytest.mark.parametrize(("code", "reason"), [("print('port in use')", "port in use"), ("", "ended with 0")])
def test_a_command_that_ends_is_reported_with_its_last_line(tmp_path: Path, code: str, reason: str) -> None:
    output = tmp_path / "up.log"
    with output.open("wb") as out, subprocess.Popen([sys.executable, "-c", code], stdout=out) as child:
        child.wait()
        with pytest.raises(CannotRun, match=f"fabrictime up: {reason}"):
            wait_running(child, tmp_path, output, START_S)


def test_a_running_fabric_is_known_by_the_address_of_its_log(tmp_path: Path) -> None:
    lock = status.Lock(tmp_path)
    status.write(tmp_path, {"started_s": 0.0, "addresses": {"log": "127.0.0.1:9"}})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert wait_running(child, tmp_path, tmp_path / "up.log", START_S) == "127.0.0.1:9"
        child.kill()
    lock.release()
