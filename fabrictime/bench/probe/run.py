"""Measures our probe engine, then irtt, on two hosts, two leaves and two spines in namespaces.

The argument is {"quick": bool}. The program prints lines of JSON: {"progress": text}, at last
{"figures": {…}}. It is a process of its own, because namespaces are entered before any thread starts.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from typing import IO, Any, cast

from fabrictime.testbed.fabric.fabric import Fabric, FabricNic
from fabrictime.testbed.processes import userns
from fabrictime.testbed.settings import FabricSettings

IRTT_PORT = 2112
IRTT_INTERVALS = {"": "1ms", "_at_its_fastest": "5us"}
"""Sending intervals of irtt: the default interval of a prober, as closely as irtt's timer can keep it, and,
for context, the shortest one."""
OFFERED_PPS = (62_000, 70_000, 80_000, 90_000)


class Worker:
    """A worker process on one NIC."""

    def __init__(self, nic: FabricNic, paths: int, rate_pps: float) -> None:
        self.nic = nic
        options = {
            "nic": nic.nic,
            "netns": nic.netns,
            "address": nic.address,
            "paths": paths,
            "rate_pps": rate_pps,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fabrictime.bench.probe.worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        """Return the worker's next answer. Raises RuntimeError if the worker has died."""
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"probe worker of {self.nic.nic}: ended with {self.process.wait()}")
        return cast(dict[str, Any], json.loads(line))

    def ask(self, peer: FabricNic, seconds: float) -> dict[str, Any]:
        """Probe `peer` for `seconds`; return the worker's answer."""
        command = {"ask": [peer.nic, peer.address, 9319], "seconds": seconds}
        cast(IO[str], self.process.stdin).write(json.dumps(command) + "\n")
        cast(IO[str], self.process.stdin).flush()
        return self.read()

    def close(self) -> None:
        """End the process."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait(10)


def cpu_s(pid: int) -> float:
    """Return the processor time, s, of a running process, by the clock id of clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def measure(
    prober: FabricNic, responder: FabricNic, paths: int, rate_pps: float, seconds: float
) -> dict[str, Any]:
    """Probe from one host to the other; return the prober's figures and the responder's processor time."""
    far, near = Worker(responder, paths, 1.0), Worker(prober, paths, rate_pps)
    try:
        far.read()
        near.read()
        before = cpu_s(far.process.pid)
        result = near.ask(responder, seconds)
        return result | {"far_cpu_s": cpu_s(far.process.pid) - before}
    finally:
        near.close()
        far.close()


def fastest(prober: FabricNic, responder: FabricNic, quick: bool) -> dict[str, float]:
    """Return the highest offered rate, 1/s, without any loss, by the median of several runs at each rate."""
    best = {"probes_per_second_one_thread": 0.0, "offered_pps": 0.0}
    for offered in OFFERED_PPS[:1] if quick else OFFERED_PPS:
        runs = []
        for _ in range(1 if quick else 3):
            result = measure(prober, responder, 4, offered, 0.5 if quick else 1.5)
            is_complete = result["lost"] == result["incomplete"] == result["missing"] == 0
            runs.append((result["samples"] / result["took_s"] if is_complete else 0.0, result))
        rate = statistics.median(rate for rate, _ in runs)
        last = runs[-1][1]
        lost = [run["lost"] for _, run in runs]
        cost_us = (last["cpu_s"] + last["far_cpu_s"]) / max(last["samples"], 1) * 1e6
        report(f"offered {offered:,}/s: {rate:,.0f}/s without loss (lost {lost}, {cost_us:.1f} us a probe)")
        if rate > best["probes_per_second_one_thread"]:
            best = {
                "probes_per_second_one_thread": rate,
                "offered_pps": float(offered),
                "one_way_p50_ns": last["forward_ns"][1],
                "one_way_p99_ns": last["forward_ns"][2],
                "pairs_kept_share": 2 * last["pairs"] / max(last["samples"], 1),
            }
    return best


def irtt_once(
    prober: FabricNic, responder: FabricNic, server: int, interval: str, seconds: float
) -> tuple[float, float]:
    """Run irtt's client once; return its actual rate, 1/s, and both processor times per probe, us.

    The cost of a client that sends nothing, which is the start-up cost, is subtracted.
    """
    idle = irtt_client(prober, responder, "-n")[1]
    before = cpu_s(server)
    text, cost = irtt_client(prober, responder, "-i", interval, "-d", f"{seconds:g}s", "-q")
    far = cpu_s(server) - before
    match = re.search(r"packets sent/received: (\d+)/(\d+)", text)
    if match is None:
        raise RuntimeError(f"irtt: no count of packets in what it printed: {text[-200:]!r}")
    sent = float(match[1])
    return sent / seconds, (cost - idle + far) / sent * 1e6


def irtt_client(prober: FabricNic, responder: FabricNic, *options: str) -> tuple[str, float]:
    """Run irtt's client to its end; return its output and its processor time, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["irtt", "client", *options, f"{responder.address}:{IRTT_PORT}"],
        preexec_fn=lambda: userns.setns(prober.netns),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(
            f"irtt client ended with {done.returncode}: {(done.stderr or done.stdout)[-200:]!r}"
        )
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def against_irtt(prober: FabricNic, responder: FabricNic, quick: bool) -> dict[str, float | str]:
    """Return the processor time per probe of our engine and of irtt, measured alternately at irtt's rate."""
    if shutil.which("irtt") is None:
        return {"missing": "irtt is not installed (Debian: apt-get install irtt)"}
    seconds = 0.5 if quick else 3.0
    server = subprocess.Popen(
        ["irtt", "server", "-b", f"{responder.address}:{IRTT_PORT}", "-i", "0", "-d", "0", "-l", "0"],
        preexec_fn=lambda: userns.setns(responder.netns),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    figures: dict[str, float | str] = {}
    try:
        wait_for_server(prober, responder)
        for name, interval in IRTT_INTERVALS.items():
            irtt_costs, ours, rates = [], [], []
            for order in range(1 if quick else 5):
                rate, cost = irtt_once(prober, responder, server.pid, interval, seconds)
                result = measure(prober, responder, 4, rate, seconds)
                own = (result["cpu_s"] + result["far_cpu_s"]) / max(result["samples"], 1) * 1e6
                irtt_costs.append(cost)
                ours.append(own)
                rates.append(rate)
                report(f"irtt, turn {order + 1}: {cost:.1f} us a probe at {rate:,.0f}/s, ours {own:.1f} us")
            ratio = statistics.median(own / their for own, their in zip(ours, irtt_costs, strict=True))
            figures |= {
                f"cpu_per_probe_vs_irtt{name}": ratio,
                f"cpu_per_probe_us{name}": statistics.median(ours),
                f"irtt_cpu_per_probe_us{name}": statistics.median(irtt_costs),
                f"irtt_rate_pps{name}": statistics.median(rates),
            }
    finally:
        server.terminate()
        server.wait(10)
    return figures


def wait_for_server(prober: FabricNic, responder: FabricNic) -> None:
    """Wait until irtt's server answers. Raises RuntimeError after 10 s."""
    end = time.monotonic() + 10
    while True:
        try:
            irtt_client(prober, responder, "-n")
            return
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def report(text: str) -> None:
    """Print a progress message as JSON."""
    print(json.dumps({"progress": text}), flush=True)


def main() -> int:
    """Measure our engine, then irtt; return the exit code, which is 3 if namespaces are not available."""
    quick = bool(json.loads(sys.argv[1])["quick"])
    try:
        userns.enter()
    except userns.NamespacesDenied as denied:
        print(json.dumps({"missing": str(denied)}), flush=True)
        return 0
    settings = FabricSettings(hosts=2, leaves=2, spines=2, host_rate_bps=0, fabric_rate_bps=0)
    with Fabric(settings) as fabric:
        prober, responder = fabric.nics()
        report("leaf-spine-leaf fabric stands: 2 hosts, 2 leaves, 2 spines, no rate limits")
        versus = against_irtt(prober, responder, quick)
        speed = fastest(prober, responder, quick)
    print(json.dumps({"figures": speed, "versus": versus}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
