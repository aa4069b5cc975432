"""A closed loop of rate limits: a simulated fleet, observed late and with noise."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from fabrictime.bench._true_queues import TrueQueues
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation
from schemas import codec
from schemas.topics import FLOWS
from streams.policy.rates.leases import Rates, WantedRate
from streams.runtime.flow_table import FlowTable
from streams.runtime.route_table import RouteTable

MS = 1_000_000
S = 1_000 * MS
QUEUES_LAG_NS = 100 * MS
"""Time from the end of a queue window until it is published."""
APPLIED_NS = 20 * MS


class RateLoop:
    """The fleet, one `Rates`, and endpoints that apply limits until they expire.

    `acts`: limits are applied. `noise`: relative noise of queue depths and reported rates. `reports`:
    actuators report the outcome.
    """

    def __init__(
        self,
        *,
        acts: bool = True,
        noise: float = 0.1,
        every: int = 2,
        rates: dict[str, Any] | None = None,
        reports: bool = False,
        **sim: Any,
    ) -> None:
        defaults = {
            "nics": 32,
            "load": 0.0,
            "flow_s": 80_000,
            "step_us": 1000,
            "rate_pps": 0,
            "rate_bps": 100_000_000,
            "lossless": False,
        }
        self.run = Simulation(SimSettings(**{**defaults, **sim}), topics=(FLOWS,))
        self.fleet = self.run.fleet
        self.rate = dict(zip(self.fleet.link_ids, self.fleet.rate_bps.tolist(), strict=True))
        self.index = self.fleet.link_index
        self.tail = FlowTable(RouteTable(), lambda nic: nic in self.fleet.nic_index)
        self.live = self.tail.of("sim")
        self.rates = Rates(self.rate.__getitem__, **(rates or {}))
        self.acts, self.noise, self.every, self.reports = acts, noise, every, reports
        self.rng = np.random.default_rng(7)
        self.later: list[tuple[int, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.leases: dict[str, int] = {}
        self.made: list[tuple[int, WantedRate]] = []
        self.windows: dict[str, dict[str, Any]] = {}
        links = np.flatnonzero(self.fleet.kind == self.fleet.kind[1]).tolist()
        self.queues = TrueQueues(self.run, links=links, noise=noise)
        self.depths: list[np.ndarray] = []
        """Mean queue of each link in each tick, bytes."""
        self.sent: list[np.ndarray] = []
        """Bytes that each flow has sent by the end of each tick."""

    @property
    def outcome(self) -> str:
        """The outcome that actuators report."""
        return "APPLIED" if self.acts else "OBSERVED"

    # --- traffic ---

    def open(self, source: int, destination: int, port: int = 50_000, **more: Any):
        flow = self.run.book.open(source, destination, port, **more)
        self.run.note_flow(flow)
        return flow

    def want(self, flow: Any, demand_bps: float | None) -> None:
        """Set the demand of a flow's application; 0: no demand."""
        flow.demand_bps = demand_bps or None
        self.run.kernel.set_flow_limits(flow.number, flow.demand_bps, flow.limit_bps)
        self.run.kernel.send(flow.number, 0 if demand_bps == 0 else None)

    def sends(self, flow: Any, size: float) -> None:
        """Add bytes to a flow's send queue."""
        self.run.kernel.send(flow.number, size)

    def left(self, flow: Any) -> float:
        """Return the bytes that a flow has yet to send."""
        return float(self.run.kernel.flow_sums_of(flow.number)[6])

    def last_link(self, nic: int) -> str:
        return self.fleet.link_ids[2 * nic + 1]

    # --- time ---

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * S / TICK_NS)):
            self.step()

    def until(self, happened: Callable[[], bool], max_s: float) -> float:
        began_ns = self.run.now_ns
        while not happened():
            assert self.run.now_ns - began_ns < max_s * S
            self.step()
        return (self.run.now_ns - began_ns) / S

    def step(self) -> None:
        for out in self.run.tick():
            record = out.record()
            for flow in record["flows"]:
                flow["rate_bps"] *= max(0.0, 1 + self.noise * self.rng.normal() / 2)
            value = codec.encode(FLOWS.record, record)
            self.tail.take(out.key.encode(), value, append_ns=out.at_ns)
        now_ns = self.run.now_ns
        queues = self.queues.tick()
        self.depths.append(self.queues.depth_bytes)
        self.sent.append(self.run.kernel.flow_sums()[0][:, 0].copy())
        if queues is not None:
            self.at(now_ns + QUEUES_LAG_NS, lambda: self.rates.take_queues(queues))
        self.contention(now_ns)
        while self.later and self.later[0][0] <= now_ns:
            heapq.heappop(self.later)[2]()
        for name in [name for name, end_ns in self.leases.items() if end_ns <= now_ns]:
            self.apply(name, None, 0)
        if self.run.ticks % self.every == 0:
            self.live.advance(now_ns)
            for wanted in self.rates.decide(now_ns, self.live.open_flows()):
                self.made.append((now_ns, wanted))
                if self.reports:
                    report = {"flow_id": wanted.flow_id, "action": wanted.action, "outcome": self.outcome}
                    report["at_ns"] = now_ns + APPLIED_NS
                    self.at(report["at_ns"], lambda r=report: self.rates.take_action(r))
                if self.acts:
                    self.at(
                        now_ns + APPLIED_NS,
                        lambda w=wanted: self.apply(w.flow_id, w.rate_bps or None, w.expires_at_ns),
                    )

    def at(self, at_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self.later, (at_ns, next(self.count), act))

    def apply(self, name: str, rate_bps: int | None, until_ns: int) -> None:
        self.leases.pop(name, None)
        if name in self.run.book.flows:
            self.run.set_flow_rate(name, rate_bps)
            if rate_bps is not None:
                self.leases[name] = until_ns

    # --- observations ---

    def contention(self, now_ns: int) -> None:
        """Publish the true contention as windows: opened, updated each 250 ms, closed."""
        standing = {row["link"]: row["kind"] for row in self.run.contention()}
        for link in sorted(standing.keys() | self.windows.keys()):
            known = self.windows.get(link)
            if known is not None and link in standing and now_ns < known["updated_ns"] + 250 * MS:
                continue
            opened_ns = now_ns if known is None else known["opened_ns"]
            i = self.index[link]
            flows = [
                {
                    "flow_id": f.flow_id,
                    "nic": self.fleet.nic_ids[f.source],
                    "rate_bps": 0.0,
                    "peer": self.fleet.nic_ids[f.destination],
                }
                for f in self.run.flows()
                if link in f.hops
            ]
            record = {
                "window_id": f"sim/{link}/{opened_ns}",
                "link": link,
                "opened_ns": opened_ns,
                "update": 0 if known is None else known["update"] + 1,
                "updated_ns": now_ns,
                "kind": standing.get(link, known["kind"] if known else ""),
                "flows": flows,
                "state": "OPENED" if known is None else "UPDATED" if link in standing else "CLOSED",
                "delay_ns": float(self.depths[-1][i]) * 8e9 / self.rate[link],
                "links": [],
                "candidates": [],
            }
            self.windows[link] = record
            self.at(now_ns + 30 * MS, lambda r=record: self.rates.take_contention(r))
            if record["state"] == "CLOSED":
                del self.windows[link]

    # --- figures ---

    def delay_ms(self, nic: int, seconds: float) -> np.ndarray:
        """Return the delay at a NIC's last link in each tick of the last `seconds`, ms."""
        i = self.index[self.last_link(nic)]
        ticks = round(seconds * S / TICK_NS)
        return np.array([depth[i] for depth in self.depths[-ticks:]]) * 8e3 / self.fleet.rate_bps[i]

    def bps(self, flow: Any, seconds: float) -> float:
        """Return the mean rate of a flow over the last `seconds`, bit/s."""
        ticks = round(seconds * S / TICK_NS)
        before = self.sent[-1 - ticks]
        earlier = before[flow.number] if flow.number < len(before) else 0.0
        return float((self.sent[-1][flow.number] - earlier) * 8 / seconds)


def jain(rates: list[float]) -> float:
    """Return Jain's index of fairness: 1 if all rates are even."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))
