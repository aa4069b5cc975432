"""Scheduling priorities of services that share a machine."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fabrictime.runtime.service import SERVICES
from fabrictime.testbed.processes import scheduling_priority
from fabrictime.testbed.processes.scheduling_priority import LAST, NICE, REAL_TIME, aside
from fabrictime.testbed.processes.userns import namespaces_allowed

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import os, sys
from fabrictime.testbed.processes.scheduling_priority import apply_priority
if len(sys.argv) > 2:
    os.setresuid(65534, 65534, 65534)
apply_priority(sys.argv[1])
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def niceness(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_display_services_have_lower_priority():
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    if mine > 0:
        pytest.skip(f"this process itself gives way, by {mine}")
    assert niceness("sim") == 10
    assert niceness("history") == 2
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
from fabrictime.testbed.processes.scheduling_priority import keep_priority
from fabrictime.testbed.processes.userns import enter
keep_priority()
enter()
child = (
    "from fabrictime.testbed.processes import scheduling_priority as s; s.apply_priority('{}'); import os; "
    "print(os.getpriority(0, 0))"
)
for name in sys.argv[1:]:
    subprocess.run([sys.executable, "-c", child.format(name)], check=True)
"""
UNPRIVILEGED = """
import os, sys
from fabrictime.testbed.processes.scheduling_priority import apply_priority, keep_priority
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
keep_priority()
for name in sys.argv[1:]:  # from the one that goes first to the one that goes last
    apply_priority(name)
    print(os.getpriority(os.PRIO_PROCESS, 0))
"""
NAMES = ("links", "worker", "policy", "history", "sim")


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
    assert niceness_of_each(FABRIC) == {"links": -15, "worker": -15, "policy": -10, "history": 2, "sim": 10}


def test_without_permission_the_order_is_kept_by_niceness():
    assert niceness_of_each(UNPRIVILEGED) == {"links": 0, "worker": 0, "policy": 2, "history": 7, "sim": 10}


CLASSES = """
import os, subprocess, sys
from fabrictime.testbed.processes.scheduling_priority import keep_priority
from fabrictime.testbed.processes.userns import enter
keep_priority()
if sys.argv[1] == "enter":
    enter()
child = (
    "import os; from fabrictime.testbed.processes import scheduling_priority as s; s.apply_priority('{}'); "
    "print(os.sched_getscheduler(0))"
)
for name in sys.argv[2:]:
    subprocess.run([sys.executable, "-c", child.format(name)], check=True)
"""
AS_USUAL = """
import os
from fabrictime.testbed.processes.scheduling_priority import apply_priority
apply_priority("links")
print(os.sched_getscheduler(0))
"""
RUN_ON = """
import os, sys, time
from fabrictime.testbed.processes import scheduling_priority
scheduling_priority.RUN_ON_S = (1, 10)
scheduling_priority.keep_priority()
scheduling_priority.apply_priority("links")
for_s, waits = float(sys.argv[1]), len(sys.argv) > 2
begin, end, pause = os.sched_getscheduler(0), time.monotonic() + for_s, time.monotonic()
while time.monotonic() < end and os.sched_getscheduler(0) == begin:
    if waits and time.monotonic() > pause + 0.2:
        time.sleep(0.001)
        pause = time.monotonic()
print(begin, os.sched_getscheduler(0))
"""


def classes(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(map(int, done.stdout.split()))


def may_be_real_time():
    """Skip where this process may not have the real-time class, or has it already."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip(f"this process is not as it is usually: scheduling class {os.sched_getscheduler(0)}")
    if classes(CLASSES, "stay", "links") != [os.SCHED_RR]:
        pytest.skip("this process may not enter the real-time class")


def test_only_the_services_from_a_lost_probe_to_a_moved_flow_are_real_time():
    may_be_real_time()
    names = ("log", "links", "policy", "act", "job", "prober", "worker", "web", "sink", "history", "flows")
    expected = [os.SCHED_RR] * 5 + [os.SCHED_OTHER] * 6
    assert classes(CLASSES, "stay", *names) == expected
    denied = namespaces_allowed()
    if denied is None:
        assert classes(CLASSES, "enter", *names) == expected


def test_a_service_started_without_priority_never_becomes_real_time():
    assert classes(AS_USUAL) == [os.SCHED_OTHER]


def test_a_service_that_never_waits_leaves_the_real_time_class():
    may_be_real_time()
    assert classes(RUN_ON, "8") == [os.SCHED_RR, os.SCHED_OTHER]


def test_a_service_that_waits_at_times_stays_in_the_real_time_class():
    may_be_real_time()
    assert classes(RUN_ON, "2.5", "waits") == [os.SCHED_RR, os.SCHED_RR]


ASIDE = """
import os
from fabrictime.testbed.processes import scheduling_priority
scheduling_priority.keep_priority()
scheduling_priority.apply_priority("links")
stand = lambda: print(os.sched_getscheduler(0))
scheduling_priority.aside(stand)
stand()
try:
    scheduling_priority.aside(lambda: 1 / 0)
except ZeroDivisionError:
    stand()
"""


def test_long_work_is_done_outside_of_the_real_time_class():
    may_be_real_time()
    assert classes(ASIDE) == [os.SCHED_OTHER, os.SCHED_RR, os.SCHED_RR]


LATE = """
import sys
from fabrictime.runtime import service
name = sys.argv[1]
service.load_all(name, None)
import fabrictime.metrics.exposition  # run() starts the exports outside of the class too
for module in service.LOADED[name][1]:
    sys.modules[module].main = lambda *_, **__: 0  # the service itself
loaded = set(sys.modules)
assert service.run(name, None) == 0
print(*(set(sys.modules) - loaded))
"""


@pytest.mark.parametrize("name", sorted(REAL_TIME & SERVICES.keys()))
def test_services_of_the_real_time_class_load_their_modules_outside_of_it(name):
    done = subprocess.run(
        [sys.executable, "-c", LATE, name], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = {"fabrictime", "streams", "actuators", "producers", "schemas", "native"}
    assert [module for module in done.stdout.split() if module.split(".")[0] in ours] == [], "loaded late"


RESTORE = """
import os, sys
from fabrictime.testbed.processes.scheduling_priority import keep_priority
if sys.argv[1] == "drop" and os.geteuid() == 0:
    os.setuid(65534)
stand = lambda: (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), dict(os.environ))
before = stand()
restore = keep_priority()
restore()
print(int(before == stand()))
"""


def test_a_raised_priority_can_be_undone():
    """Where no namespace may be entered, `up` goes on with loopback NICs, as if it had not tried."""
    assert classes(RESTORE, "stay") == [1]
    assert classes(RESTORE, "drop") == [1]


def test_without_the_right_the_order_stays_and_none_goes_before_others():
    order = sorted(NICE, key=NICE.__getitem__)
    behind = [scheduling_priority.niceness(name, True) for name in order]
    assert behind == sorted(behind)
    assert (behind[0], behind[-1]) == (0, LAST)
    assert scheduling_priority.niceness("a service that is none", False) == 0


def test_deciding_services_run_before_storage_and_web():
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


SESSION = """
import sys
from fabrictime.testbed.processes import scheduling_priority
from fabrictime.testbed.processes.userns import enter
undo = scheduling_priority.raise_session()
raised = scheduling_priority.SESSION.read_text().split()[-1]
if sys.argv[1] == "enter":
    enter()
undo()
print(raised, scheduling_priority.SESSION.read_text().split()[-1])
"""


@pytest.mark.parametrize("where", ["stay", "enter"])
def test_a_session_goes_before_others_until_that_is_undone(where):
    """Niceness counts only within a session where the kernel groups processes by session."""
    if not scheduling_priority.SESSION.exists():
        pytest.skip("this kernel does not group processes by session")
    if where == "enter" and (denied := namespaces_allowed()) is not None:
        pytest.skip(denied)
    done = subprocess.run(
        [sys.executable, "-c", SESSION, where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    may = niceness("links") < 0
    assert list(map(int, done.stdout.split())) == [scheduling_priority.SESSION_NICE if may else 0, 0]


def test_without_sessions_nothing_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(scheduling_priority, "SESSION", tmp_path / "missing")
    scheduling_priority.raise_session()()
    assert not list(tmp_path.iterdir())
    scheduling_priority.SESSION.touch()  # as in the kernel's own group
    scheduling_priority.raise_session()()
    assert scheduling_priority.SESSION.read_text() == ""
