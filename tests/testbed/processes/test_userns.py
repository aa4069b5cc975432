"""Entering namespaces: the changes, the refusals and the cleanup."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fabrictime.testbed.processes import userns

ROOT = Path(__file__).resolve().parents[3]


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds this tree."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_the_machines_network_and_run_stay_within_reach(inside):
    server = socket.create_server(("127.0.0.1", 0))
    before = os.stat("/proc/self/ns/net").st_ino
    names = set(os.listdir("/run")) - {"netns"}

    def body():
        assert os.stat("/proc/self/ns/net").st_ino == before
        assert os.geteuid() == 0
        socket.create_connection(server.getsockname(), 5).close()
        assert names - set(os.listdir("/run")) == set() or os.getuid() != 0
        assert os.listdir("/run/netns") == [".fabrictime"]
        userns.enter()
        return os.stat("/proc/self/ns/mnt").st_ino

    assert inside(body) != os.stat("/proc/self/ns/mnt").st_ino
    assert not userns.inside()
    server.close()


def test_children_open_the_namespaces_and_sockets_stay_where_they_were_opened(inside):
    def body():
        path = userns.in_helper_thread(lambda: userns.new_netns("one"))
        here = os.stat("/proc/self/ns/net").st_ino
        code = (
            "import os, sys; from fabrictime.testbed.processes import userns;"
            "print(userns.in_netns(sys.argv[1], lambda: os.stat('/proc/thread-self/ns/net').st_ino))"
        )
        child = python(code, path)
        assert int(child.stdout) == os.stat(path).st_ino != here
        there = userns.in_netns(path, lambda: socket.create_server(("0.0.0.0", 0)))
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", there.getsockname()[1]), 0.5)
        there.close()
        userns.remove_netns(path)
        assert not os.path.exists(path)
        assert os.stat("/proc/self/ns/net").st_ino == here

    inside(body)


def test_a_process_with_threads_is_refused_and_stays_as_it_was(denied):
    if denied:
        pytest.skip(denied)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    before = os.readlink("/proc/self/ns/user")
    try:
        with pytest.raises(userns.NamespacesDenied, match=r"already runs \d+ threads"):
            userns.enter()
    finally:
        stop.set()
        thread.join()
    assert os.readlink("/proc/self/ns/user") == before


def test_importing_the_testbed_starts_no_thread():
    code = (
        "import os; import fabrictime.testbed.control, fabrictime.testbed.cli; "
        "print(len(os.listdir('/proc/self/task')))"
    )
    assert python(code).stdout.strip() == "1"


@pytest.mark.parametrize("kind", ["user", "mnt", "net"])
def test_a_limit_of_zero_is_named(inside, kind):
    def body():
        # This body is root in a user namespace of its own, whose limits bind what it starts below.
        try:
            Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
        except OSError as error:
            return f"skip: {error}"
        code = "import os; os.setuid(0)"  # stays without effect: the child below does what a user's would
        del code
        # Without CAP_SYS_ADMIN a child of it stands where an ordinary user stands.
        drop = (
            "import ctypes; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0);"  # PR_CAPBSET_DROP CAP_SYS_ADMIN
            "import os, sys; os.execv(sys.executable, [sys.executable, '-c', "
            "'from fabrictime.testbed.processes import userns; print(userns.namespaces_allowed())'])"
        )
        return python(drop).stdout.strip()

    answer = inside(body)
    if answer.startswith("skip"):
        pytest.skip(answer)
    assert f"user.max_{kind}_namespaces is 0" in answer


def test_new_netns_before_entering_is_refused():
    with pytest.raises(userns.NamespacesDenied, match="after enter"):
        userns.new_netns("x")


def count_namespaces() -> set[str]:
    """Return the network namespaces of all processes that can be read."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/task/*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:
            continue
    return found


OWNER = """
import sys, time
from fabrictime.testbed.processes.userns import enter
enter()
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.settings import FabricSettings
from fabrictime.testbed.jobs.traffic import FlowSpec
with Testbed(FabricSettings(hosts=2, leaves=2, spines=1)) as testbed:
    flow = testbed.traffic.start(FlowSpec("h1", "h2", 1_000_000, 60.0))
    inode = testbed.fabric.open_in("h1", lambda: __import__("os").readlink("/proc/thread-self/ns/net"))
    print(flow._worker.pid, inode, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["close", "kill -9"])
def test_nothing_is_left_behind(denied, end):
    if denied:
        pytest.skip(denied)
    interfaces = set(socket.if_nameindex())
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    line = owner.stdout.readline().split()
    worker, inode = int(line[0]), line[1]
    assert re.fullmatch(r"net:\[\d+\]", inode)
    assert Path(f"/proc/{worker}").exists()
    if end == "kill -9":
        owner.send_signal(signal.SIGKILL)
    owner.stdin.close()
    owner.wait(20)
    owner.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists(), "the flow's process outlived its owner"
    assert inode not in count_namespaces()
    assert set(socket.if_nameindex()) == interfaces
    assert not any(name.startswith(f"ft{owner.pid}-") for name in _netns_names())


def _netns_names() -> list[str]:
    return os.listdir("/run/netns") if os.path.isdir("/run/netns") else []


def test_an_ordinary_user_builds_a_fabric_and_runs_a_flow(denied, tmp_path):
    if denied:
        pytest.skip(denied)
    code = """
import os, sys
uid = int(sys.argv[1])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
import pydantic, pyroute2
from fabrictime.testbed.processes.userns import enter
enter()
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.settings import FabricSettings
from fabrictime.testbed.jobs.traffic import FlowSpec
with Testbed(FabricSettings(hosts=2, leaves=2, spines=2)) as testbed:
    event = testbed.faults.add("grey 50% leaf1<>spine1")
    testbed.faults.clear()
    result = testbed.traffic.start(FlowSpec("h1", "h2", 2_000_000, 0.3)).wait()
    print(result.received_packets, result.loss)
"""
    if os.geteuid() != 0:
        uid = 0
    else:
        uid = 65534
        try_reading = python(
            "import os, sys; os.setgid(65534); os.setuid(65534); open(sys.argv[1]).read();"
            "import pyroute2, pydantic",
            str(ROOT / "schemas" / "ids.py"),
        )
        if try_reading.returncode != 0:
            pytest.skip(
                f"an ordinary user cannot read {ROOT} or its Python: {try_reading.stderr.strip()[-120:]}"
            )
    child = python(code, str(uid), cwd=tmp_path if uid == 0 else "/")
    assert child.returncode == 0, child.stderr
    packets, loss = child.stdout.split()
    assert int(packets) > 20
    assert float(loss) == 0.0
