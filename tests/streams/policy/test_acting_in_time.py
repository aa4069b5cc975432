"""Steering acts at once on an open window: two transfers meet beside jobs, with the delays of production."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from fabrictime.bench.control.sim import SHARD, Loop, simulation
from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.sim.workload import FLOW_PORT, SimFlow
from schemas.records import ContentionWindow, Decision
from schemas.topics import CONTENTION
from streams.runtime.pipeline_constants import HOP_NS
from tests.examples import draws

RATE = 10**10
HOSTS, HOSTS_PER_LEAF = 8, 2
STEP_S = 0.002
SEEDS = (1, 2, 3, 4, 5, 6, 8, 9)
"""With seed 7 a transfer meets a job's flow as well, seconds later."""


@dataclass
class Meeting:
    """Two transfers that begin to meet on an uplink, as in the tour: all on hosts that run jobs as well."""

    seed: int
    acts: bool = True

    def __post_init__(self) -> None:
        shape = Shape(
            hosts=HOSTS,
            hosts_per_rack=HOSTS_PER_LEAF,
            spines=4,
            host_rate_bps=RATE,
            fabric_rate_bps=RATE,
        )
        self.fleet = Fleet(shape, self.seed)
        job = {
            "kind": "alltoall",
            "nics": HOSTS // 2,
            "placed": "apart",
            "bytes": RATE / 8 * STEP_S * 3,
            "compute_ms": 50,
            "connections": 2,
        }
        settings = SimSettings.model_validate(
            {
                "nics": HOSTS,
                "seed": self.seed,
                "shard": SHARD,
                "rate_bps": RATE,
                "load": 0.0,
                "rate_pps": 100.0,
                "flush_ms": 100,
                "jobs": [{"name": "job-a", **job}, {"name": "job-b", **job}],
            }
        )
        self.loop = Loop(simulation(settings, self.fleet), self.acts)

    @property
    def windows(self) -> list[tuple[int, ContentionWindow]]:
        """The windows and the times at which policy can read them."""
        return [
            (log_ns + HOP_NS, output.record)
            for log_ns, output in self.loop.outputs
            if output.topic is CONTENTION
        ]

    def run(self, share: float = 0.7, lead_s: float = 0.0) -> None:
        """Run the jobs, then the transfers for six seconds; the second begins `lead_s` later."""
        chance = random.Random(self.seed)
        leaf = chance.randrange(HOSTS // HOSTS_PER_LEAF)
        sources = [HOSTS_PER_LEAF * leaf, HOSTS_PER_LEAF * leaf + 1]
        others = [nic for nic in range(HOSTS) if nic not in sources]
        self.loop.advance(2 + chance.random())
        self.begin_ns = self.loop.run.now_ns
        self.transfers: list[SimFlow] = []
        self.link = ""
        for source, peer in zip(sources, chance.sample(others, 2), strict=True):
            if self.transfers and lead_s:
                self.loop.advance(lead_s)
            self.transfers.append(self._open(source, peer, share, chance))
        self.ports = [flow.port for flow in self.transfers]
        self.loop.advance(6)

    def _open(self, source: int, peer: int, share: float, chance: random.Random) -> SimFlow:
        for port in chance.sample(range(50_000, 51_000), 200):
            path = self.fleet.paths([source], [peer], [port], FLOW_PORT).of(0)
            uplink = self.fleet.link_ids[path[1]]
            if self.link in ("", uplink):
                self.link = uplink
                flow = self.loop.run.book.open(source, peer, port, job="transfer", demand_bps=share * RATE)
                self.loop.run.note_flow(flow)
                return flow
        raise AssertionError("no port leads over the link")

    @property
    def detected_ns(self) -> int:
        return next(
            at_ns for at_ns, window in self.windows if window["link"] == self.link and at_ns > self.begin_ns
        )

    @property
    def moves(self) -> list[Decision]:
        ids = {flow.flow_id for flow in self.transfers}
        return [decision for decision in self.loop.decisions if decision["flow_id"] in ids]


@pytest.mark.parametrize("seed", draws(SEEDS, 2))
def test_one_of_two_new_transfers_moves_within_half_a_second_of_the_detection(seed: int) -> None:
    meeting = Meeting(seed)
    meeting.run()
    first = meeting.moves[0]
    assert first["at_ns"] - meeting.detected_ns <= 0.5e9
    assert (first["reason"]["window_id"] or "").startswith(f"{SHARD}/{meeting.link}/")
    early = [move for move in meeting.moves if move["at_ns"] < first["at_ns"] + 4e9]
    assert len(early) == 1, "one move suffices"
    last = [window for _, window in meeting.windows if window["link"] == meeting.link][-1]
    assert last["state"] == "CLOSED"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_transfer_that_joins_an_older_one_is_parted_from_it_as_soon(seed: int) -> None:
    meeting = Meeting(seed)
    meeting.run(lead_s=2.0)
    assert meeting.moves[0]["at_ns"] - meeting.detected_ns <= 0.5e9
    assert len({move["flow_id"] for move in meeting.moves}) == 1


def test_in_observe_the_first_decision_comes_as_soon_and_no_flow_moves() -> None:
    meeting = Meeting(3, acts=False)
    meeting.run()
    assert meeting.moves[0]["at_ns"] - meeting.detected_ns <= 0.5e9
    assert [flow.port for flow in meeting.transfers] == meeting.ports
