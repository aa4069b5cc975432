"""Measures whether a stopped agent is mistaken for a dead host, or a dead host for a stopped agent.

Agents are killed, or stopped for 1 to 30 s, and the verdicts on their hosts are counted. Some trials run on
the fabric of real packets with `fabrictime up`, most on the simulated fleet with the pure logic of the links
and alerts stages, whose truth is known. A dead simulated host neither probes nor answers. On the fabric of
packets its prober is stopped and its cable loses all packets.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, RunningFabric, running_fabric
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.runtime import status
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import cable_ends, end_parts, host_of
from schemas.kafka.reader import BEGINNING, END, TopicReader
from schemas.records import AlertKind, AlertState, LinkState
from schemas.topics import ALERTS, LINK_HEALTH, PATHS
from streams.alerts.prober_health import ProberHealth
from streams.links.health.shard_health import ShardHealth
from streams.runtime.thresholds import Thresholds

MS: Final = 1_000_000
STOPS, LIVE_STOPS, QUICK_STOPS, QUICK_LIVE_STOPS = 50, 8, 6, 2
CUTS, LIVE_CUTS, QUICK_CUTS = 10, 3, 2
HOSTS, CUT_HOSTS = 8, 3
OUTAGE_S: Final = (1.0, 30.0)
CUT_S: Final = 8.0
SETTLE_S: Final = 4.0
"""Time after a trial in which late verdicts still count."""
SIM_WARM_S: Final = 2.5
SIM_RATE_HZ: Final = 600.0
WARM_S: Final = 12.0
TRACED_S: Final = 90.0
HEAL_S: Final = 30.0
SEED: Final = 25
SETTINGS: Final = """
[up]
web = false
clock_pages = false
"""
NO_ANSWER: Final = "does not answer"
"""Part of the text of an alert AGENT about a silent prober; other alerts AGENT are about busy ones."""


class Trial(NamedTuple):
    """A trial: the agent of NIC number `nic`, or with `is_cut` its whole host, is down for `outage_s`."""

    nic: int
    outage_s: float
    is_cut: bool = False


@dataclass(slots=True)
class Verdicts:
    """Verdicts during one trial and its settling time."""

    down: set[str] = field(default_factory=set)
    """Subjects that link health reported as DOWN."""
    silent_agents: set[str] = field(default_factory=set)
    """Hosts with an alert that says that their prober is silent while the host itself answers."""


def outages_s(trials: int) -> list[float]:
    """Return durations from 1 to 30 s, evenly spaced on a logarithmic scale."""
    return [float(duration_s) for duration_s in np.geomspace(*OUTAGE_S, trials)]


def called_host_down(host: str, verdicts: Verdicts) -> bool:
    """Return whether a host, one of its NICs or one of its cables was reported as DOWN."""
    return any(host in _nodes(subject) for subject in verdicts.down)


def called_agent_down(host: str, verdicts: Verdicts) -> bool:
    """Return whether an alert reported that only the prober of a host was silent."""
    return host in verdicts.silent_agents


def _nodes(subject: str) -> set[str]:
    """Return the nodes of a link-health subject, which is a cable, a NIC or a host."""
    return {end_parts(end).node for end in cable_ends(subject)} if "<>" in subject else {host_of(subject)}


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about ten minutes, or two with `quick`."""
    live, live_missing = _live_trials(progress, quick)
    stops = (QUICK_STOPS if quick else STOPS) - sum(not trial.is_cut for trial, _ in live)
    cuts = (QUICK_CUTS if quick else CUTS) - sum(trial.is_cut for trial, _ in live)
    progress(f"agents: {stops} stopped agents and {cuts} dead hosts of the simulated fleet")
    simulated = list(side_by_side(_simulate, _trials(stops, cuts)))
    return _figures(live, simulated, live_missing)


def _figures(
    live: Sequence[tuple[Trial, Verdicts]], simulated: Sequence[tuple[Trial, Verdicts]], live_missing: str
) -> dict[str, Value]:
    every = [*live, *simulated]
    wrong_stops = [t for t, verdicts in every if not t.is_cut and called_host_down(_host(t), verdicts)]
    wrong_cuts = [t for t, verdicts in every if t.is_cut and called_agent_down(_host(t), verdicts)]
    missed = [t for t, verdicts in every if t.is_cut and not called_host_down(_host(t), verdicts)]
    named = sum(called_agent_down(_host(t), verdicts) for t, verdicts in every if not t.is_cut)

    def note(is_cut: bool, wrong: Iterable[Trial], more: str) -> str:
        counts = [sum(t.is_cut == is_cut for t, _ in results) for results in (live, simulated)]
        where = f"{counts[0]} on the fabric of packets, {counts[1]} in simulation"
        which = ", ".join(f"{_host(t)} {t.outage_s:.1f} s" for t in wrong)
        return "; ".join(text for text in (where, live_missing, which, more) if text)

    return {
        "agent_stop_called_host_down": Figure(
            float(len(wrong_stops)), note=note(False, wrong_stops, f"{named} named by an alert AGENT")
        ),
        "dead_host_called_agent_down": Figure(
            float(len(wrong_cuts)), note=note(True, wrong_cuts, f"{len(missed)} not called DOWN")
        ),
    }


def _host(trial: Trial) -> str:
    return f"h{trial.nic + 1}"


def _trials(stops: int, cuts: int) -> list[Trial]:
    """Return trials in random order; a host whose cable is cut has no trials with a stopped agent.

    Alerts about a cut host last too long for other trials.
    """
    chance = np.random.default_rng(SEED)
    trials = [Trial(int(chance.integers(HOSTS - CUT_HOSTS)), duration_s) for duration_s in outages_s(stops)]
    trials += [Trial(HOSTS - 1 - number % CUT_HOSTS, CUT_S, is_cut=True) for number in range(cuts)]
    return [trials[number] for number in chance.permutation(len(trials))]


# -------------------------------------------------------------------------------- simulated fleet


class _Simulated:
    """A small fleet like the testbed's, with the stages' logic that evaluates its evidence."""

    def __init__(self, seed: int) -> None:
        fleet = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), seed)
        self.probes = ProbedFleet(fleet, peers=7, rate_hz=SIM_RATE_HZ, seed=seed)
        self.probes.host_probes = True
        self.health = ShardHealth("fabric", Thresholds(), "links/0")
        self.probers = ProberHealth("fabric", Thresholds())
        self.found = Verdicts()
        self._events = 0

    def run(self, seconds: float) -> None:
        """Advance simulated time by `seconds`."""
        for _ in range(round(seconds * 200)):
            for append_ns, event in self.probes.run(5 * MS):
                self._take(self.health.ingest(event, append_ns, self.probes.book, self._events))
                self.probers.ingest(event, append_ns)
                self._events += 1
            self._take(self.health.evaluate(self.probes.now_ns))
            for detection in self.probers.evaluate(self.probes.now_ns):
                if _is_silent(detection.kind, detection.text) and not detection.over:
                    self.found.silent_agents.add(detection.subject)

    def _take(self, changes: Iterable[tuple[str, Any]]) -> None:
        down = [name for name, record in changes if record is not None and record["state"] == LinkState.DOWN]
        self.found.down.update(down)


def _simulate(trial: Trial) -> tuple[Trial, Verdicts]:
    """Run one trial on its own simulated fleet; return the trial and its verdicts."""
    it = _Simulated(SEED + round(trial.outage_s * 1000))
    it.run(SIM_WARM_S)
    absent = it.probes.gone if trial.is_cut else it.probes.stopped
    absent[trial.nic] = True
    it.run(trial.outage_s)
    absent[trial.nic] = False
    it.probes.starve(trial.nic, 100 * MS)
    it.run(SETTLE_S)
    return trial, it.found


def _is_silent(kind: str, text: str) -> bool:
    return kind == AlertKind.AGENT and NO_ANSWER in text


# -------------------------------------------------------------------------------- fabric of packets


def _live_trials(progress: Progress, quick: bool) -> tuple[list[tuple[Trial, Verdicts]], str]:
    """Return the trials on the fabric of packets and '', or an empty list and the reason."""
    trials = _trials(QUICK_LIVE_STOPS if quick else LIVE_STOPS, 1 if quick else LIVE_CUTS)
    try:
        with running_fabric(progress, SETTINGS) as fabric, _Live(fabric) as live:
            live.wait_traced()
            results = []
            for number, trial in enumerate(trials):
                how = (
                    "is cut off" if trial.is_cut else f"has its agent {'killed' if number % 3 else 'stopped'}"
                )
                progress(f"agents: {_host(trial)} {how} for {trial.outage_s:.1f} s")
                verdicts = live.cut(trial) if trial.is_cut else live.stop(trial, is_kill=number % 3 == 2)
                results.append((trial, verdicts))
            return results, ""
    except CannotRun as reason:
        return [], f"no fabric of packets: {reason}"


class _Live:
    """A running fabric whose agents and hosts are stopped, and the verdicts that it publishes."""

    def __init__(self, fabric: RunningFabric) -> None:
        self._fabric = fabric
        self._found = Verdicts()
        self._down: set[str] = set()
        self._reader = TopicReader(fabric.bootstrap, {LINK_HEALTH: END, ALERTS: END})

    def __enter__(self) -> _Live:
        self._reader.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def wait_traced(self) -> None:
        """Wait until all paths are known and the agents have learned them. Raises CannotRun."""
        fabric_state = self._fabric.control.ask("show")
        pairs = len(fabric_state["nics"]) * (len(fabric_state["nics"]) - 1)
        traced_pairs: set[str] = set()
        end_s = time.monotonic() + TRACED_S
        with TopicReader.open(self._fabric.bootstrap, {PATHS: BEGINNING}) as paths:
            while len(traced_pairs) < pairs:
                if time.monotonic() > end_s:
                    raise CannotRun(f"{len(traced_pairs)} of {pairs} pairs are traced after {TRACED_S:g} s")
                traced_pairs.update(message.key for message in paths.poll(0.5))
        self._watch(WARM_S)

    def stop(self, trial: Trial, *, is_kill: bool) -> Verdicts:
        """Kill a prober, which `up` restarts, or stop it for the trial's outage; return the verdicts."""
        self._found = Verdicts()
        pid = self._pid(trial)
        os.kill(pid, signal.SIGKILL if is_kill else signal.SIGSTOP)
        try:
            self._watch(trial.outage_s)
        finally:
            if not is_kill and self._pid(trial) == pid:
                os.kill(pid, signal.SIGCONT)
        self._watch(SETTLE_S)
        return self._found

    def cut(self, trial: Trial) -> Verdicts:
        """Stop a prober and cut its host's cable a while; return the verdicts until the host is UP again."""
        self._found = Verdicts()
        pid = self._pid(trial)
        self._fabric.control.ask("fault", line=f"blackhole {_host(trial)}")
        os.kill(pid, signal.SIGSTOP)
        try:
            self._watch(trial.outage_s)
        finally:
            self._fabric.control.ask("clear")
            if self._pid(trial) == pid:
                os.kill(pid, signal.SIGCONT)
        verdicts = self._found
        end_s = time.monotonic() + HEAL_S
        self._watch(SETTLE_S)
        while self._down and time.monotonic() < end_s:
            self._watch(0.5)
        return verdicts

    def _pid(self, trial: Trial) -> int:
        for row in status.read(self._fabric.data)["children"]:
            if row["name"].startswith("prober") and f"{_host(trial)}/" in row["name"] and row["pid"]:
                return int(row["pid"])
        raise CannotRun(f"no prober of {_host(trial)} is running")

    def _watch(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            for message, record in self._reader.decoded(self._reader.poll(min(left_s, 0.2))):
                self._take(message.topic, message.key, record)

    def _take(self, topic: str, key: str, record: Any) -> None:
        if topic == LINK_HEALTH.name:
            is_down = record is not None and record["state"] == LinkState.DOWN
            (self._down.add if is_down else self._down.discard)(key)
            if is_down:
                self._found.down.add(key)
        elif (
            record is not None
            and record["state"] == AlertState.RAISED
            and _is_silent(record["kind"], record["text"])
        ):
            self._found.silent_agents.add(record["subject"])
