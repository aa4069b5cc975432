"""Work in a network namespace: results and errors come back, and the thread of the caller stays outside."""

from __future__ import annotations

import os
import threading

import pytest

from producers.netns import in_netns


def test_without_a_namespace_the_work_runs_in_this_thread() -> None:
    assert in_netns(None, threading.current_thread) is threading.current_thread()


def test_a_namespace_that_does_not_exist_is_named() -> None:
    with pytest.raises(OSError, match="/nowhere/ns"):
        in_netns("/nowhere/ns", lambda: 1)


def test_a_file_that_is_no_namespace_is_named(tmp_path) -> None:
    path = tmp_path / "plain"
    path.touch()
    with pytest.raises(OSError, match=f"network namespace {path}"):
        in_netns(str(path), lambda: 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace needs root")
def test_the_work_runs_on_another_thread_and_its_error_is_raised_here() -> None:
    here = "/proc/self/ns/net"
    assert in_netns(here, threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        in_netns(here, lambda: 1 // 0)
