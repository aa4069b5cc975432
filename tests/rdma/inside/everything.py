"""Checks in the guest, with own programs and perftest. ../test_guest.py asserts their results."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, "/repo")
import fabric
from actuator import until
from harness import (
    actuator,
    busiest,
    check,
    counts,
    flow_of,
    listening,
    main,
    other_than,
    path_map,
    port_of,
    program,
    script,
)
from probers import Probers

PERFTEST_WRITES = 30_000


@check
def perftest_is_seen_moved_and_saved() -> dict[str, Any]:
    """Debian's ib_write_bw, unmodified, through two silent blackholes."""
    acting = actuator()
    options = ["-F", "-s", "4096", "-n", str(PERFTEST_WRITES), "-p", "18515", "-t", "64"]
    gid = {nic: str(fabric.gid_index(f"rxe_{nic}", fabric.NICS[nic][0])) for nic in ("a0", "b0")}
    # It polls without pause: of the guest's two processors it gets one, the other is the network's.
    serving = ["nice", "-n", "5", "ib_write_bw", "-d", "rxe_b0", "-x", gid["b0"], *options]
    writing = [
        "nice",
        "-n",
        "5",
        "ib_write_bw",
        "-d",
        "rxe_a0",
        "-x",
        gid["a0"],
        *options,
        fabric.NICS["b0"][0],
    ]
    with program(serving, None, library=False):
        listening("18515")
        with program(writing, acting) as client:
            key = flow_of(acting)
            port, verbs = acting.flows[key]
            found: dict[str, Any] = {"key": key, "verbs": verbs, "first_spine": busiest()}
            found["first_port_spine"] = path_map(range(port, port + 1))[port]
            until(lambda: acting.reports.get(key, {}).get("sent_bytes"), "report with bytes")
            times = []
            spine = found["first_spine"]
            for _ in range(2):
                fabric.blackhole(spine, "leafa", True)
                chosen = other_than(spine)
                before, began = counts()[chosen], time.monotonic()
                answer = acting.order("MOVE", key, port_of(chosen))
                assert answer == f"DONE {port_of(chosen)} SQD", answer
                until(
                    lambda chosen=chosen, before=before: counts()[chosen] > before + 50,
                    "writes on the new path",
                )
                times.append(time.monotonic() - began)
                fabric.blackhole(spine, "leafa", False)
                spine = chosen
            found["moved_ms"] = [round(each * 1e3, 1) for each in times]
            found["pace"] = acting.order("PACE", key, 10**8)
            found["low_port"] = acting.order("MOVE", key, 1000)
            found["nobody"] = acting.order("MOVE", "qp:rxe_a0:99:1", 50_000)
            found["unknown"] = acting.refused("JUMP", key, 1)
            report = acting.reports[key]
            found["report"] = report
            found["exit"] = client.end()
            until(lambda: acting.gone == [key], "GONE")
            until(lambda: acting.reports[key].get("closed"), "closed")
            found["iterations"] = int(
                [line.split() for line in client.text if line.startswith(" 4096 ")][-1][1]
            )
            found["sent_bytes"] = acting.sent_bytes[key]
            found["lines"] = len(acting.heard)
    return found


@check
def failover_beats_the_transport() -> dict[str, Any]:
    """Blackhole to first completed write on the new path, against the transport's own time to its error.

    Timeout 67 ms, six retries. The pair that is moved tries for ever: a late move shows as a late write."""
    gave_up, detected, recovered = [], [], []
    acting = actuator()
    with program(script("writer", fabric_label(port_of("spine1")), 7), acting) as writer:
        writer.read("ready")
        key = flow_of(acting)
        spine = busiest()
        for _ in range(6):
            began = time.monotonic()
            fabric.blackhole(spine, "leafa", True)
            # It may have stalled for a moment before, for want of a processor: that is not it.
            until(lambda: writer.text[-1].startswith("last "), "stall")
            at = len(writer.text) - 1
            last = max(began, float(writer.text[at].split()[1]))
            chosen = other_than(spine)
            detected.append(time.monotonic() - last)
            answer = acting.order("MOVE", key, port_of(chosen))
            assert answer == f"DONE {port_of(chosen)} SQD", answer
            until(lambda at=at: len(writer.text) > at + 1, "first write after it")
            recovered.append(float(writer.text[at + 1].split()[1]) - last)
            fabric.blackhole(spine, "leafa", False)
            spine = chosen
    for _ in range(3):
        with program(script("writer", fabric_label(port_of("spine1")), 6), None, library=False) as writer:
            writer.read("ready")
            spine = busiest()
            fabric.blackhole(spine, "leafa", True)
            at, _, last = writer.read("error")
            gave_up.append(float(at) - float(last))
            fabric.blackhole(spine, "leafa", False)
    ratio = statistics.median(recovered) / statistics.median(gave_up)
    return {
        "rdma_failover_vs_transport_error": round(ratio, 3),
        "failover_ms": [round(each * 1e3, 1) for each in recovered],
        "of_it_detection_ms": [round(each * 1e3, 1) for each in detected],
        "transport_error_ms": [round(each * 1e3, 1) for each in gave_up],
    }


def fabric_label(port: int) -> int:
    return port & 0x3FFF or 0x4001


@check
def standby_takes_over() -> dict[str, Any]:
    acting = actuator()
    with program(script("standby", "standby"), acting) as owner:
        text = owner.read("standby")
        until(lambda: len(acting.flows) == 4, "FLOW of both ends of both pairs")
        answer = acting.order("MOVE", flow_of(acting), 1000)
        written = owner.read("written")
        owner.release()
        return {
            "return_codes": text,
            "answer": answer,
            "written": written[0],
            "ms": float(written[1]) * 1e3,
            "exit": owner.end(),
        }


@check
def quiet_without_sockets() -> dict[str, Any]:
    with program(script("standby", "quiet"), None) as owner:
        before, after = owner.read("threads")
        return {"threads_before": int(before), "threads_after": int(after), "exit": owner.end()}


@check
def forks_and_reconnects() -> dict[str, Any]:
    """A child of the owner changes nothing; an actuator that comes back is told all again."""
    acting = actuator()
    with program(script("standby", "fork"), acting) as owner:
        before, after = owner.read("threads")
        child = owner.read("child")
        until(lambda: len(acting.flows) == 2, "FLOW of both ends")
        flows = dict(acting.flows)
        acting.flows.clear()
        acting.hang_up()
        until(lambda: acting.flows == flows, "FLOW again")
        answer = acting.order("MOVE", flow_of(acting), 50_001)
        owner.release()
        return {"threads": int(after) - int(before), "child": child[0], "answer": answer, "exit": owner.end()}


@check
def pyverbs_moves_registered_queue_pairs() -> dict[str, Any]:
    """No library loaded: the program moves its own, by the service's protocol and by call."""
    acting = actuator()
    with program(script("owner"), acting, library=False) as owner:
        key = flow_of(acting)
        first = acting.flows[key]
        found: dict[str, Any] = {"key": key, "flow": first, "spine_before": busiest()}
        chosen = other_than(found["spine_before"])
        ordered = time.monotonic()
        found["moved"] = acting.order("MOVE", key, port_of(chosen))
        found["ms"] = round((time.monotonic() - ordered) * 1e3, 1)
        assert found["moved"].startswith("DONE "), found["moved"]
        found["expected"] = f"DONE {port_of(chosen)} SQD"
        before = counts()[chosen]
        until(lambda: counts()[chosen] > before + 20, "writes on the new path")
        found["reported"] = acting.flows[key][0] == port_of(chosen)
        found["pace"] = acting.order("PACE", key, 10**8)
        found["low_port"] = acting.order("MOVE", key, 1000)
        found["nobody"] = acting.order("MOVE", "qp:rxe_a0:99:1", 50_000)
        owner.release()
        found["exit"] = owner.end()
        until(lambda: acting.gone == [key], "GONE")
        return found


@check
def probers_see_every_path() -> dict[str, Any]:
    """Two RDMA probers, several paths each, one of the spines silently losing for a while."""
    probers = Probers(["a0", "b0"])
    found: dict[str, Any] = {"ready": probers.ready}
    spine_of = path_map(probers.ready["a0"]["paths"])
    found["spine_of"] = spine_of
    before = counts()
    probers.begin()
    probers.until(
        lambda: all(len(trips) > 2 for nic in probers.edges for _, trips in probers.groups(nic).values()),
        "samples of every path",
    )
    found["packets"] = {spine: now - before[spine] for spine, now in counts().items()}
    chosen = max(fabric.SPINES, key=lambda spine: list(spine_of.values()).count(spine))
    dead = {path for path, spine in spine_of.items() if spine == chosen}
    found["dead"] = sorted(dead)
    fabric.blackhole(chosen, "leafa", True)
    since = len(probers.text["a0"])

    def reported() -> bool:
        groups = probers.groups("a0", since)
        return all(lost > 2 if path in dead else len(trips) > 5 for path, (lost, trips) in groups.items())

    probers.until(reported, "losses of the dead paths, answers on the others")
    fabric.blackhole(chosen, "leafa", False)
    found["while_dead"] = {
        path: {"lost": lost, "answered": len(trips)}
        for path, (lost, trips) in probers.groups("a0", since).items()
    }
    after = len(probers.text["a0"]) + 1
    probers.until(
        lambda: all(len(trips) > 1 for _, trips in probers.groups("a0", after).values()), "all paths again"
    )
    found["ended"] = probers.end()
    found["batches"] = [each["batch"] for each in probers.text["a0"]]
    trips = sorted(trip for _, trips in probers.groups("a0").values() for trip in trips)
    found["round_trip_ms"] = [round(trips[at] / 1e6, 2) for at in (0, len(trips) // 2, -1)]
    return found


if __name__ == "__main__":
    sys.exit(main())
