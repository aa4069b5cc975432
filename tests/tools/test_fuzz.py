"""The fuzzer finds planted defects, and its targets accept their own seeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tools import fuzz


def test_inputs_are_changed_seeds_and_repeat_with_the_seed() -> None:
    draws = [[fuzz.changed(random.Random(7), [b"abcdef", b"123456"]) for _ in range(50)] for _ in range(2)]
    assert draws[0] == draws[1]
    inputs = {fuzz.changed(random.Random(number), [b"abcdef"]) for number in range(200)}
    assert len(inputs) > 100


def parse(data: bytes) -> None:
    if len(data) < 3:
        raise ValueError("short")
    if data[1:2] == b"x":
        raise KeyError("planted")


def test_an_unforeseen_exception_is_a_defect() -> None:
    target = fuzz.Target(parse, (ValueError,), [b"axc", b"abc"])
    defects = fuzz.run(target, 1000, 1)
    assert len(defects) == fuzz.MAX_DEFECTS
    assert all("KeyError" in line for line in defects)
    assert fuzz.run(fuzz.Target(parse, (ValueError, KeyError), [b"abc"]), 1000, 1) == []


def test_the_death_of_the_process_is_a_defect() -> None:
    assert fuzz.apart(fuzz.Target(lambda data: os._exit(3), ()), 1, 1) == ["exit code 3"]


@pytest.mark.slow("500 inputs for each of a hundred parsers")
def test_no_parser_has_a_defect() -> None:
    command = [sys.executable, str(fuzz.ROOT / "tools/fuzz.py"), "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
