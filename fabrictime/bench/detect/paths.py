"""Compares every path that `fabrictime up` publishes on a fabric of real packets with the truth.

The figure is the share of paths (two hosts' NICs, an announced source port, requests and answers) with
exactly the links of the fabric's own route lookup, at rest and after a spine was moved at one leaf, and the
time until then. A burst and the links' counters prove a sample of them. `flow_routes.py` adds flows.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import running_fabric
from fabrictime.bench.detect.flow_routes import measure_routes
from fabrictime.commands.views.topology import Reader
from fabrictime.testbed.control import ControlClient

SETTINGS: Final = """
[up]
web = false
workers = 0
clock_pages = false
[probes]
rate_pps = 500
[fabric]
hosts = {hosts}
leaves = {leaves}
spines = {spines}
"""
LIMIT_S: Final = 150.0
PROVEN: Final = 12


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about a minute, less with `quick`."""
    settings = SETTINGS.format(hosts=4 if quick else 8, leaves=2 if quick else 4, spines=3 if quick else 4)
    with (
        running_fabric(progress, settings) as (control, bootstrap, data),
        contextlib.closing(Reader(bootstrap)) as reader,
    ):
        return _measure(control, bootstrap, data / "run" / "flows.sock", reader, progress)


def _measure(
    control: ControlClient, bootstrap: str, socket: Path, reader: Reader, progress: Progress
) -> dict[str, Value]:
    evaluate = _Comparison(control, reader)
    progress("paths: waiting for all to be named")
    began_s = time.monotonic()
    right_share = evaluate.until_right()
    took_s = time.monotonic() - began_s
    proven = f"{evaluate.proven()} of {PROVEN} proven by their packets"
    note = f"{evaluate.path_count} paths; {proven}"
    figures: dict[str, Value] = {
        "topology_links_found": Figure(right_share, note=note),
        "topology_found_after_s": took_s,
    }
    figures |= measure_routes(control, bootstrap, socket, progress)
    progress("paths: a spine is moved")
    control.ask("move", spine="spine1", other="spine2", leaves=["leaf1"])
    began_s = time.monotonic()
    evaluate.truth.clear()
    moved = 1 - evaluate.share()
    right_share = evaluate.until_right()
    took_s = time.monotonic() - began_s
    note = f"{moved:.0%} of paths were others then; {evaluate.proven()} of {PROVEN} proven by their packets"
    return figures | {
        "topology_links_found_after_move": Figure(right_share, note=note),
        "topology_found_after_move_s": took_s,
    }


@dataclass(slots=True)
class _Comparison:
    """Compares published paths with the fabric's true paths."""

    control: ControlClient
    reader: Reader
    truth: dict[tuple[str, str, int, int], tuple[str, ...]] = field(default_factory=dict)
    path_count: int = 0

    def until_right(self) -> float:
        """Wait at most `LIMIT_S` until all published paths are right; return the share that is right then."""
        deadline = time.monotonic() + LIMIT_S
        while (share := self.share()) < 1 and time.monotonic() < deadline:
            self.reader.follow(0.5)
        return share

    def share(self) -> float:
        """Return the share of paths whose published links are the true ones."""
        while self.reader.follow(0.05):
            pass
        nics = self.reader.nics()
        hosts = {nic["nic"]: nic["host"] for nic in self.control.ask("show")["nics"]}
        if set(nics) != set(hosts):
            return 0.0
        right = total = 0
        for nic, record in nics.items():
            for peer, other in nics.items():
                if hosts[nic] == hosts[peer]:
                    continue
                for port in record["path_ports"]:
                    for lines, true in (
                        (self.reader.book.forward(nic, peer, port), (nic, peer, port, other["probe_port"])),
                        (self.reader.book.reverse(nic, peer, port), (peer, nic, other["probe_port"], port)),
                    ):
                        total += 1
                        right += lines == self._true(*true)
        self.path_count = total
        return right / total if total else 0.0

    def _true(
        self, source: str, destination: str, sport: int, dport: int, likely: bool = True
    ) -> tuple[str, ...]:
        key = (source, destination, sport, dport)
        if not likely or key not in self.truth:
            links: Any = self.control.ask(
                "path", source=source, destination=destination, sport=sport, dport=dport, likely=likely
            )
            if not likely:
                return tuple(links)
            self.truth[key] = tuple(links)
        return self.truth[key]

    def proven(self) -> int:
        """Return the number of sampled paths on which real packets take the links of the route lookup."""
        keys = sorted(self.truth)
        sample = keys[:: max(1, len(keys) // PROVEN)][:PROVEN]
        return sum(self._true(*key, likely=False) == self.truth[key] for key in sample)
