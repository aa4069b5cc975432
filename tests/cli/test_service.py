"""How services that share a machine give way to each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabrictime.testbed.userns import namespaces_allowed

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


FABRIC = """
import os, subprocess, sys
from fabrictime.precedence import keep_precedence
from fabrictime.testbed.userns import enter
keep_precedence()
enter()
child = "from fabrictime.precedence import give_way; give_way('{}'); import os; print(os.getpriority(0, 0))"
for name in sys.argv[1:]:
    subprocess.run([sys.executable, "-c", child.format(name)], check=True)
"""
UNPRIVILEGED = """
import os, sys
from fabrictime.precedence import give_way, keep_precedence
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
keep_precedence()
for name in sys.argv[1:]:  # from the one that goes first to the one that goes last
    give_way(name)
    print(os.getpriority(os.PRIO_PROCESS, 0))
"""
NAMES = ("links", "policy", "worker", "history")


def niceness_of_each(code):
    if (mine := os.getpriority(os.PRIO_PROCESS, 0)) != 0:
        pytest.skip(f"this process is not as it is usually: niceness {mine}")
    done = subprocess.run(
        [sys.executable, "-c", code, *NAMES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(zip(NAMES, map(int, done.stdout.split()), strict=True))


def test_within_the_fabrics_namespaces_services_go_first_as_outside():
    """A capability counts for nothing there: without care all who ought to go first would stand at 0."""
    denied = namespaces_allowed()
    if denied is not None:
        pytest.skip(denied)
    if niceness("links") == 0:
        pytest.skip("this process may not go before others")
    assert niceness_of_each(FABRIC) == {"links": -15, "policy": -10, "worker": -3, "history": 10}


def test_who_may_not_go_first_keeps_the_order_by_going_behind():
    assert niceness_of_each(UNPRIVILEGED) == {"links": 0, "policy": 2, "worker": 5, "history": 10}
