"""Scheduling priorities: their order with and without the right, and long work of a real-time process."""

import os
import signal
import sys
import threading

import pytest

from fabrictime.runtime import scheduling_priority
from fabrictime.runtime.scheduling_priority import LAST, NICE, REAL_TIME, aside, niceness


def test_without_the_right_the_order_stays_and_none_goes_before_others():
    order = sorted(NICE, key=NICE.__getitem__)
    behind = [niceness(name, True) for name in order]
    assert behind == sorted(behind)
    assert (behind[0], behind[-1]) == (0, LAST)
    assert niceness("a service that is none", False) == 0


def test_what_decides_goes_before_what_stores_and_draws():
    assert set(NICE) >= REAL_TIME
    assert max(map(NICE.__getitem__, REAL_TIME)) < NICE["sink"] < NICE["history"] < NICE["sim"]


@pytest.fixture
def scheduler(monkeypatch):
    """Record changes of class; the process seems to be of the class `now`."""
    changes = []

    def pretend(now):
        monkeypatch.setattr(os, "sched_getscheduler", lambda pid: now)
        monkeypatch.setattr(os, "sched_setscheduler", lambda pid, kind, param: changes.append(kind))
        return changes

    return pretend


def test_long_work_leaves_the_real_time_class_in_a_thread_of_its_own(scheduler):
    changes = scheduler(os.SCHED_RR)
    assert aside(threading.current_thread) is not threading.current_thread()
    assert changes == [os.SCHED_OTHER]
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0)
    changes = scheduler(os.SCHED_OTHER)
    assert aside(threading.current_thread) is threading.current_thread()


@pytest.mark.parametrize(("name", "leaves"), [("web", True), ("links", False)])
def test_only_some_services_keep_the_real_time_class(scheduler, monkeypatch, name, leaves):
    changes, nice, limits = scheduler(os.SCHED_RR), [], []
    monkeypatch.setattr(os, "setpriority", lambda kind, pid, value: nice.append(value))
    monkeypatch.setattr(scheduling_priority.resource, "setrlimit", lambda kind, pair: limits.append(pair))
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.delenv(scheduling_priority.BEHIND, raising=False)
    scheduling_priority.apply_priority(name)
    assert changes == ([os.SCHED_OTHER] if leaves else [])
    assert nice == [NICE[name]]
    assert len(limits) == (not leaves), "a thread that runs on and on must leave the class"


def test_a_user_without_the_right_marks_the_children_and_gets_everything_back(scheduler, monkeypatch):
    scheduler(os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", _refused)
    monkeypatch.setattr(os, "setpriority", _refused)
    monkeypatch.delenv(scheduling_priority.BEHIND, raising=False)
    monkeypatch.setattr(os, "sched_getparam", _refused)
    restore = scheduling_priority.keep_priority()
    assert os.environ[scheduling_priority.BEHIND] == "1"
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    restore()
    assert scheduling_priority.BEHIND not in os.environ


def _refused(*_):
    raise PermissionError
