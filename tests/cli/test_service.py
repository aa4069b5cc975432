"""How services that share a machine give way to each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import os, sys
from fabrictime.precedence import give_way
if len(sys.argv) > 2:
    os.setresuid(65534, 65534, 65534)
give_way(sys.argv[1])
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def niceness(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_what_is_merely_looked_at_gives_way():
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    if mine > 0:
        pytest.skip(f"this process itself gives way, by {mine}")
    assert niceness("history") == 10
    assert niceness("nobody knows it") == 0


def test_without_the_right_to_go_before_others_a_service_stands_as_it_is():
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    if mine != 0:
        pytest.skip(f"this process is not as it is usually: niceness {mine}")
    if os.geteuid() != 0:
        assert niceness("links") in (0, -10)
        return
    assert niceness("links", "drop") == 0
