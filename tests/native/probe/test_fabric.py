"""The engine across namespaces: several paths by source port, a dead spine seen on its paths alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabrictime.testbed.processes import userns

pytestmark = pytest.mark.fabric

SCRIPT = """
from fabrictime.testbed.processes import userns
userns.enter()
import json, threading, time
from fabrictime.testbed.fabric.fabric import Fabric
from fabrictime.testbed.fabric.faults import Faults
from fabrictime.testbed.settings import FabricSettings
from native.core.probe import Engine, Peer, TestClock, open_sockets
from producers.netns import in_netns

PATHS = 16

def collect(engine, seconds, since_ns=0):
    end = time.monotonic() + seconds
    paths, forward = {}, []
    while time.monotonic() < end:
        time.sleep(0.05)
        batch = engine.drain()
        forward += batch.forward.tolist()
        for g, path in enumerate(batch.path.tolist()):
            answered, lost = paths.get(path, (0, 0))
            count = int((batch.sent[batch.start[g]:batch.start[g + 1]] >= since_ns).sum())
            paths[path] = (answered + count, lost + int(batch.lost[g]))
    return paths, forward

with Fabric(FabricSettings(hosts=2, leaves=2, spines=2)) as fabric:
    engines, threads = [], []
    for number, nic in enumerate(fabric.nics()):
        sockets = in_netns(nic.netns, lambda: open_sockets(nic.address, 9319, 9320, PATHS))
        clock = TestClock(offset_ns=1_000_000 * number)
        settings = {"key": bytes(16), "rate_pps": 3000.0, "timeout_ms": 500, "clock": clock}
        engines.append(Engine(sockets, nic=nic.nic, **settings))
        threads.append(threading.Thread(target=engines[-1].run))
        threads[-1].start()
    near, far = fabric.nics()
    engines[0].set_peers([Peer(far.nic, far.address, 9319)])
    good, forward = collect(engines[0], 1.0)
    no_t3 = engines[0].counters()["no_t3"]
    faults = Faults(fabric)
    faults.add("blackhole leaf1>spine1")
    dead_ns = time.time_ns()  # the first NIC's clock is the system's
    engines[0].drain()
    collect(engines[0], 0.8)  # what was sent before
    broken, _ = collect(engines[0], 1.0, dead_ns)
    forward.sort()
    print(json.dumps({"good": good, "broken": broken, "forward_p50_ns": forward[len(forward) // 2],
                      "no_t3": no_t3}))
    for engine in engines:
        engine.stop()
    for thread in threads:
        thread.join()
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    reason = userns.namespaces_allowed()
    if reason is not None:
        pytest.skip(reason)
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_path_answers_and_nothing_is_lost(seen: dict[str, Any]) -> None:
    assert set(map(int, seen["good"])) == set(range(9320, 9336))
    assert sum(lost for _, lost in seen["good"].values()) == 0
    assert all(answered > 0 for answered, _ in seen["good"].values())
    assert seen["no_t3"] == 0


def test_a_dead_link_is_lost_on_its_paths_and_on_no_other(seen: dict[str, Any]) -> None:
    dead = {path for path, (answered, lost) in seen["broken"].items() if lost and not answered}
    living = {path: counts for path, counts in seen["broken"].items() if counts[0]}
    assert living, "every path died: they all ran over one spine"
    assert dead, "no path died: none ran over the spine"
    assert dead | living.keys() <= seen["good"].keys()
    assert all(lost <= 0.2 * answered for answered, lost in living.values())


def test_forward_delay_is_microseconds_past_the_clock_offset(seen: dict[str, Any]) -> None:
    assert 1_000_000 < seen["forward_p50_ns"] < 1_100_000
