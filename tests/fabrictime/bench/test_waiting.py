"""Waiting for a condition, and for the end of a program."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fabrictime.bench._waiting import end_child, wait_for, wait_until


def test_waiting_ends_with_the_time_or_the_limit() -> None:
    answers = iter([False, True])
    took_s = wait_for(lambda: next(answers), 10)
    assert took_s is not None
    assert took_s < 5
    assert wait_for(lambda: False, 0.3) is None
    with pytest.raises(TimeoutError, match=r"the page: not within 0\.1 s"):
        wait_until(lambda: False, 0.1, "the page")


def test_a_program_that_ignores_the_request_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        end_child(child, signal.SIGTERM, 0.1)
        assert child.returncode == -signal.SIGKILL
