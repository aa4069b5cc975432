"""Measures clock errors on a fabric of real packets, with `fabrictime up` idle and then under load.

The figure is the 99th percentile of the error between any two NICs' corrected clocks, against their given
clocks: over an interval without traffic and one with 60 % on every host's link. Timestamps are the kernel's.
Probers share the cores with everything else, including the traffic.

The links run at LINK_BPS and each NIC sends 500 probes/s, so that two cores can carry both and the pipeline.
Every host receives two UDP flows of 30 % from two other hosts; source ports are chosen so that no link inside
the fabric carries more than three of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, running_fabric
from fabrictime.bench._waiting import wait_for
from fabrictime.state.scorecard import true_ns
from fabrictime.testbed.control import ControlClient
from native.core.probe import TestClock
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ClockOffsets, ClockSync
from schemas.topics import CLOCK_OFFSETS

LINK_BPS: Final = 20_000_000
SHARE: Final = 0.3
"""Load of each of a host's two flows, as a share of the link rate."""
START_S: Final = 90.0
WARM_S: Final = 15.0
"""Time left out at the start, while floors and wander are learned, and when traffic starts."""
INTERVAL_S: Final = 40.0
QUICK_S: Final = 15.0
SETTINGS: Final = f"""
[up]
web = false
workers = 1
clock_pages = false
[probes]
rate_pps = 500
[fabric]
host_rate_bps = {LINK_BPS}
fabric_rate_bps = {LINK_BPS}
clock_offset_max_ns = 5_000_000
clock_drift_max_ppb = 15_000
clock_wander_ppb_per_sqrt_s = 1
"""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the figures by key, in about two and a half minutes, or one and a half with `quick`."""
    interval_s = QUICK_S if quick else INTERVAL_S
    with running_fabric(progress, SETTINGS) as (control, bootstrap, _):
        clocks = _clocks(control)
        wait_synced(bootstrap, len(clocks))
        spells = {}
        for name in ("idle", "loaded"):
            progress(f"fabric: {name}, {WARM_S + interval_s:g} s")
            with _load(control, WARM_S + interval_s) if name == "loaded" else contextlib.nullcontext():
                time.sleep(WARM_S)
                begin_ns = time.time_ns()
                time.sleep(interval_s)
                spells[name] = (begin_ns, time.time_ns())
        records = _offsets(bootstrap)
    errors_by_interval = {name: errors_of(records, clocks, *interval) for name, interval in spells.items()}
    for name, errors in errors_by_interval.items():
        if not len(errors["pairs"]):
            raise CannotRun(f"{name}: no two clocks were SYNCED at once")
    p99 = {name: float(np.percentile(errors["pairs"], 99)) for name, errors in errors_by_interval.items()}
    figures: dict[str, Value] = {}
    for name, errors in errors_by_interval.items():
        note = (
            f"p50 {np.percentile(errors['pairs'], 50):.0f}, most {errors['pairs'].max():.0f} ns; bounds"
            f" {np.median(errors['bounds']):.0f} ns in the median, held {errors['covered'].mean():.4f};"
            f" {errors['synced'].mean():.4f} of clocks SYNCED"
        )
        figures[f"fabric_p99_ns_{name}"] = Figure(p99[name], note=note)
    figures["fabric_p99_loaded_over_idle"] = p99["loaded"] / p99["idle"]
    return figures


def _clocks(control: ControlClient) -> dict[str, TestClock]:
    """Return the configured clock of each NIC."""
    clocks = {}
    for nic in control.ask("show")["nics"]:
        truth = nic["clock"]
        clocks[nic["nic"]] = TestClock(**truth)
    return clocks


def wait_synced(bootstrap: str, clocks: int) -> None:
    """Wait until at least `clocks` clocks are SYNCED. Raises CannotRun."""

    def are_synced() -> bool:
        newest: dict[str, str] = {}
        for record in _offsets(bootstrap):
            newest.update({c["clock"]: c["state"] for c in record["clocks"]})
        return sum(state == "SYNCED" for state in newest.values()) >= clocks

    if wait_for(are_synced, START_S, poll_s=1.0) is None:
        raise CannotRun(f"clocks: not all {clocks} SYNCED after {START_S:g} s")


def _offsets(bootstrap: str) -> list[ClockOffsets]:
    """Return all `ClockOffsets` of the log."""
    with TopicReader(bootstrap, {CLOCK_OFFSETS: BEGINNING}) as reader:
        messages = reader.connect(10).read_to_end()
        return [record for _, record in reader.decoded(messages) if record is not None]


def errors_of(
    records: list[ClockOffsets], clocks: Mapping[str, TestClock], begin_ns: int, end_ns: int
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return figures of the windows in an interval, as arrays by name.

    `pairs` is |error| between any two SYNCED clocks of a domain. `covered` is whether each clock's bound held
    against the domain's median, and `bounds` has the bounds. `synced` is whether each given clock was SYNCED.
    """
    pairs: list[float] = []
    covered: list[float] = []
    bounds: list[float] = []
    synced: list[float] = []
    windows: dict[int, list[ClockOffsets]] = {}
    for record in records:
        windows.setdefault(record["window"], []).append(record)
    for parts in windows.values():
        start = parts[0]["window_start_ns"] - parts[0]["log_offset_ns"]
        if not begin_ns <= start < end_ns:
            continue
        states = {c["clock"]: (c, r["domain"]) for r in parts for c in r["clocks"] if c["clock"] in clocks}
        for domain in {domain for _, domain in states.values()}:
            synced_clocks = [c for c, d in states.values() if d == domain and c["state"] == ClockSync.SYNCED]
            error = np.array(
                [
                    (c["at_ns"] - true_ns(clocks[c["clock"]].reading, c["at_ns"]) + c["offset_ns"])
                    + c["offset_fraction_ns"]
                    for c in synced_clocks
                ]
            )
            a, b = np.triu_indices(len(synced_clocks), 1)
            pairs.extend(np.abs(error[a] - error[b]).tolist())
            bound = np.array([c["bound_ns"] for c in synced_clocks])
            covered.extend((np.abs(error - np.median(error)) <= bound).tolist() if len(synced_clocks) else [])
            bounds.extend(bound.tolist())
        synced.extend(
            float(name in states and states[name][0]["state"] == ClockSync.SYNCED) for name in clocks
        )
    return {
        "pairs": np.array(pairs),
        "covered": np.array(covered),
        "bounds": np.array(bounds),
        "synced": np.array(synced),
    }


@contextlib.contextmanager
def _load(control: ControlClient, seconds: float) -> Iterator[None]:
    """Send two flows into every host, from two other hosts, while the block runs."""
    hosts = sorted({nic["host"] for nic in control.ask("show")["nics"]})
    carried: dict[str, int] = {}
    flows: list[dict[str, Any]] = []
    for i, host in enumerate(hosts):
        for step in (len(hosts) // 2, len(hosts) // 2 - 1):
            source = hosts[(i + step) % len(hosts)]
            best: tuple[int, int, list[str]] | None = None
            for port in range(40_000 + 100 * len(flows), 40_000 + 100 * len(flows) + 12):
                ports = {"sport": port, "dport": 45_000 + len(flows)}
                path = control.ask("path", source=source, destination=host, **ports)
                worst = max(carried.get(link, 0) for link in path)
                if best is None or worst < best[0]:
                    best = (worst, port, path)
                if worst < 2:
                    break
            assert best is not None  # noqa: S101  a path was asked for at least once
            for link in best[2]:
                carried[link] = carried.get(link, 0) + 1
            flows.append(
                {
                    "source": source,
                    "destination": host,
                    "sport": best[1],
                    "dport": 45_000 + len(flows),
                    "rate_bps": round(SHARE * LINK_BPS),
                    "duration_s": seconds,
                    "protocol": "udp",
                }
            )

    def send(flow: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # the fabric goes before its flows end
            for _ in control.stream("flow", timeout_s=seconds + 30, **flow):
                pass

    threads = [threading.Thread(target=send, args=(flow,), daemon=True) for flow in flows]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(10)
