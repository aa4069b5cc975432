"""Measures link health: dead, lossy and flapping links of the simulated fleet, whose faults are known; flaps
through killed workers; false alarms on the fabric of packets under load.

Links are drawn at random with a seed drawn at run time, which the notes contain.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, running_fabric
from fabrictime.bench._machine import busy_processes
from fabrictime.bench._pipeline import Service, embedded_log
from fabrictime.bench.clock.fabric import wait_synced
from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.detect.live_links import LiveLinks
from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.simulation import Simulation
from producers.sim.topology import Fleet
from schemas.ids import cable_id
from schemas.records import LinkEvent, LinkHealth
from schemas.topics import LINKS, PATHS
from streams.links.health.shard_health import ShardHealth
from streams.runtime.route_table import RouteTable

MS: Final = 1_000_000
LATENCY_NS: Final = 3 * MS
"""Time from an agent to the log, as on one machine."""
WARM_S: Final = 2.5
BROKEN_S: Final = 1.0
HEALED_S: Final = 1.6
GREY_S: Final = 3.0
GREY_HEALED_S: Final = 8.0
REPORT_EVERY: Final = 5
"""Number of trials between two progress messages."""
FLAP_SETTINGS: Final = {"stages": ["links"], "session_timeout_s": 2}


class _Evaluated:
    """A simulated fleet and the verdicts on its links' evidence, in simulated time."""

    def __init__(self, nics: int, seed: int) -> None:
        settings = SimSettings.model_validate({"nics": nics, "seed": seed, "load": 0.2, "jobs": ()})
        self.run = Simulation(settings, topics=(PATHS, LINKS))
        self.book = RouteTable()
        self.health = ShardHealth("fabric", source="sim")
        self.now_ns = 0
        self.events = 0
        self.cpu_s = 0.0
        self.published: list[tuple[int, LinkHealth]] = []
        """(log time, `LinkHealth`) of everything since the last `forget`."""

    def pump(self, seconds: float) -> None:
        """Advance simulated time by `seconds`."""
        for out in self.run.advance(seconds):
            if out.topic is PATHS:
                self.book.take(out.key.encode(), out.value(), None, out.at_ns)
                continue
            self.now_ns = max(self.now_ns, out.at_ns // MS * MS + LATENCY_NS)
            event = cast(LinkEvent, out.record())
            begin_s = time.process_time()
            changes = self.health.ingest(event, self.now_ns, self.book, self.events)
            if self.health.due_ns <= self.now_ns:
                changes += self.health.evaluate(self.now_ns)
            self.cpu_s += time.process_time() - begin_s
            self.events += 1
            self.published += [(self.now_ns, record) for _, record in changes if record is not None]

    def named(self, state: str) -> dict[str, int]:
        """Return the time at which each subject entered `state`, by subject."""
        first_ns: dict[str, int] = {}
        for at_ns, record in self.published:
            if record["state"] == state:
                first_ns.setdefault(record["subject"], at_ns)
        return first_ns


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the figures; some ten minutes, or two where `quick` (256 NICs, few trials, 60 s of load)."""
    seed = secrets.randbits(31)
    figures = _dead_links(progress, 256 if quick else 1024, 3 if quick else 60, seed)
    figures |= _grey_links(progress, 256 if quick else 1024, 2 if quick else 20, seed)
    figures |= _flaps(progress, 3 if quick else 12, seed)
    figures |= _false_alarms(progress, 60.0 if quick else 600.0)
    return figures


def _dead_links(progress: Progress, nics: int, trials: int, seed: int) -> dict[str, Value]:
    """Break one to three links at once, many times; return the shares detected, the delays and the cost.

    A verdict counts if it comes within `BROKEN_S`.
    """
    progress(f"dead links: {trials} times 1 to 3 of {nics} NICs' links at once, seed {seed}")
    it, rng = _Evaluated(nics, seed), np.random.default_rng(seed)
    it.pump(WARM_S)
    broken = right = false = verdicts = 0
    took_ms: list[float] = []
    for trial in range(trials):
        if trial and trial % REPORT_EVERY == 0:
            progress(f"dead links: {trial} of {trials} trials, {right} of {broken} links named")
        links = rng.choice(it.run.fleet.link_ids, trial % 3 + 1, replace=False).tolist()
        cables = {cable_id(link) for link in links}
        it.published.clear()
        began_ns = it.now_ns
        for link in links:
            it.run.fault(f"blackhole {link}")
        it.pump(BROKEN_S)
        named = it.named("DOWN")
        broken, verdicts = broken + len(cables), verdicts + len(named)
        right += len(cables & named.keys())
        false += len(named.keys() - cables)
        took_ms += [(named[cable] - began_ns) / MS for cable in cables & named.keys()]
        it.run.clear()
        it.pump(HEALED_S)
    note = f"{broken} links in {trials} trials, {nics} NICs, seed {seed}"
    return {
        "dead_link_localised_right": Figure(right / broken, note=note),
        "dead_link_false": Figure(
            false / max(verdicts, 1), note=f"{false} of {verdicts} verdicts name a whole cable"
        ),
        "dead_link_sim_detect_ms_p50": Figure(float(np.median(took_ms or [np.inf])), "ms"),
        "link_event_us": Figure(1e6 * it.cpu_s / max(it.events, 1), "us", f"{it.events} events"),
    }


def _grey_links(progress: Progress, nics: int, trials: int, seed: int) -> dict[str, Value]:
    """Let single links lose 5 %, one by one; return the p95 of the detection time, infinite if undetected."""
    progress(f"lossy links: {trials} times 5 % on a link of {nics} NICs")
    it, rng = _Evaluated(nics, seed + 1), np.random.default_rng(seed + 1)
    it.pump(WARM_S)
    took_s: list[float] = []
    false = 0
    for trial in range(trials):
        if trial and trial % REPORT_EVERY == 0:
            progress(f"lossy links: {trial} of {trials}, {np.isfinite(took_s).sum()} detected")
        link = str(rng.choice(it.run.fleet.link_ids))
        it.published.clear()
        began_ns = it.now_ns
        it.run.fault(f"grey 5% {link}")
        it.pump(GREY_S)
        named = it.named("GREY") | it.named("DOWN")
        at_ns = it.named("GREY").get(cable_id(link))
        took_s.append(np.inf if at_ns is None else (at_ns - began_ns) / 1e9)
        false += len(named.keys() - {cable_id(link)})
        it.run.clear()
        it.pump(GREY_HEALED_S)
    missed = sum(not np.isfinite(duration_s) for duration_s in took_s)
    value = float(np.quantile(took_s, 0.95, method="higher"))
    note = f"{trials} links, {missed} not within {GREY_S:g} s, {false} others named"
    return {
        "grey_link_5pct_detect_s_p95": Figure(value, note=note) if np.isfinite(value) else Missing(note),
        "grey_link_others_named": Figure(float(false), "1"),
    }


def _flaps(progress: Progress, times: int, seed: int) -> dict[str, Value]:
    """Flap a link of a small fleet while a real worker is killed at random; compare counts with the truth."""
    progress(f"flaps: {times} of them, the worker killed on the way")
    rng = np.random.default_rng(seed)
    link = "leaf2:swp5>spine3:swp2"
    with tempfile.TemporaryDirectory(prefix="ft-flaps-") as name, embedded_log(Path(name), 2) as bootstrap:
        fleet = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), 1)
        live = LiveLinks(bootstrap, ProbedFleet(fleet, peers=7, start_ns=time.time_ns()))
        live.publish_paths()
        worker = _worker(bootstrap, Path(name))
        killed = 0
        try:
            live.run(WARM_S)
            for number in range(times):
                live.probes.down[fleet.link_index[link]] = True
                live.run(rng.uniform(0.3, 0.8))
                if number % 3 == 1:
                    worker = _kill(worker, bootstrap, Path(name))
                    killed += 1
                live.probes.down[fleet.link_index[link]] = False
                live.run(rng.uniform(0.8, 1.4))
                if number % 3 == 2:
                    worker = _kill(worker, bootstrap, Path(name))
                    killed += 1
            live.run(20, until=lambda: live.state(cable_id(link)) in ("UP", "FLAPPING"))
            live.run(2)
        finally:
            worker.stop()
            live.close()
        record = live.last(cable_id(link))
        counted = record["flaps_total"] if record else 0
        others = live.subjects_ever("DOWN") - {cable_id(link)}
    note = f"{counted} counted of {times}, {killed} workers killed, {len(others)} other links named"
    return {"flap_count_exact": Figure(counted / times if counted <= times else times / counted, note=note)}


def _worker(bootstrap: str, folder: Path) -> Service:
    started = Service("streams", {"kafka": {"bootstrap": bootstrap}, **FLAP_SETTINGS}, folder)
    started.wait_ready()
    return started


def _kill(worker: Service, bootstrap: str, folder: Path) -> Service:
    """End a worker by SIGKILL and start another one."""
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait(10)
    worker.stop()
    return _worker(bootstrap, folder)


COMMAND: Final = (sys.executable, "-m", "fabrictime")
FABRIC: Final = """
[fabric]
host_rate_bps = 20000000
fabric_rate_bps = 20000000
"""
LOAD: Final = 0.6
"""Load as a share of a host's link. Each host sends halfway round the ring, which takes the traffic over
spines, because a leaf has two hosts."""


def _false_alarms(progress: Progress, seconds: float) -> dict[str, Value]:
    """Run everything on the fabric of packets, under load and beside two processes that keep the cores busy.

    Returns the numbers of false verdicts of link health and of false alerts.
    """
    progress(f"false alarms: the fabric at {LOAD:.0%} load for {seconds:g} s beside two hogs")
    try:
        with running_fabric(progress, FABRIC, round(seconds / 60) + 5) as (control, bootstrap, data):
            wait_synced(bootstrap, len(control.ask("show")["nics"]))
            with _load(seconds, data), busy_processes(2):
                time.sleep(seconds)
            links = json.loads(_fabrictime("links", "--all", "--json", "--dir", str(data)))["rows"]
            alerts = json.loads(_fabrictime("alerts", "--all", "--json", "--dir", str(data)))["rows"]
    except (CannotRun, RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
        return {"false_alarms_10min": Missing(f"the fabric did not run: {str(error)[:160]}")}
    about_links = [a for a in alerts if a["kind"].startswith(("LINK", "NIC", "HOST"))]
    for alert in about_links:
        progress(f"false alarm: {alert['kind']} {alert['subject']}: {alert['text']}")
    note = f"in {seconds:g} s; link health of {len(links)} subjects; other alerts: {_kinds(alerts)}"
    note += "".join(f"; {alert['kind']} {alert['subject']}" for alert in about_links)
    return {"false_alarms_10min": Figure(float(len(about_links)), note=note)}


def _kinds(alerts: list[Mapping[str, Any]]) -> str:
    kinds = [a["kind"] for a in alerts if not a["kind"].startswith(("LINK", "NIC", "HOST"))]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none"


def _fabrictime(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _load(seconds: float, data: Path) -> Iterator[None]:
    """Let every host send to the host halfway round the list of hosts, for `seconds`."""
    options = ["--rate", f"{20 * LOAD:g}mbit", "--for", f"{seconds:g}s", "--dir", str(data)]
    commands = [[*COMMAND, "fabric", "flow", f"h{n + 1}", f"h{(n + 4) % 8 + 1}", *options] for n in range(8)]
    flows = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        yield
        for flow in flows:
            _, lines = flow.communicate(timeout=60)
            if flow.returncode:
                raise RuntimeError(f"a flow of the load: {lines.strip()}")
    finally:
        for flow in flows:
            if flow.poll() is None:
                flow.kill()
            flow.communicate()
