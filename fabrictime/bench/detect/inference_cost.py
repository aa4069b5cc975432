"""Measures the processor time of queue inference, from a `PathQueueing` message to encoded `LinkQueues`.

The messages are those of the simulated fleet: probes by schedule, four partitions, one record of each every
30 ms. To compare two versions, run both alternately in one session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from native.core import ClockLine
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.ids import host_of
from schemas.kafka import partition_of
from schemas.topics import PATH_QUEUEING, PATHS, PROBES, QUEUES
from streams.delays.queueing import SourceQueueing
from streams.links.schedule.probe_schedule import plan_shard, records_of
from streams.queues.inference import ShardQueues
from streams.queues.validation import validate_queueing
from streams.runtime.columnar import decode_columnar, encode_columnar
from streams.runtime.pipeline_constants import SUB_SLOTS, slot_ns_of
from streams.runtime.route_table import RouteTable
from streams.runtime.tables import Member

NICS: Final = 64
PARTITIONS: Final = 4
PUBLISH_TICKS: Final = 3
"""Number of 10 ms ticks between two records of a partition."""
BOUND_NS: Final = 100.0
WARM_UP_S: Final = 4.0
"""Time until depths are calibrated, which is not measured."""


class Cost(NamedTuple):
    """Processor time of inference: in total and for messages alone, per slot and link; and in cores."""

    us_per_slot_link: float
    message_us_per_slot_link: float
    cores: float
    links: int


class FleetLog:
    """The `PathQueueing` messages of a simulated fleet, and the routes of its probes."""

    def __init__(self, nics: int, seed: int) -> None:
        self.settings = SimSettings(nics=nics, seed=seed)
        self._sim = Simulation(self.settings, topics=(PATHS, PROBES))
        fleet = self._sim.fleet
        self.start_ns = self._sim.start_ns
        self.rates_bps = dict(zip(fleet.link_ids, fleet.rate_bps.tolist(), strict=True))
        self.routes = RouteTable()
        self._members = {nic: Member(nic, host_of(nic), self.settings.shard, nic) for nic in fleet.nic_ids}
        self._lines = {
            nic: ClockLine(
                self.start_ns + clock["offset_ns"], -clock["offset_ns"], -clock["drift_ppb"], BOUND_NS
            )
            for nic, clock in zip(fleet.nic_ids, self._sim.clocks, strict=True)
        }
        slot_ns = slot_ns_of(max(self.rates_bps.values())) // SUB_SLOTS
        self._sources = [SourceQueueing(f"{PROBES.name}/{n}", slot_ns) for n in range(PARTITIONS)]

    def messages(self, seconds: float) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (time, messages of all partitions) for the next `seconds`."""
        is_scheduled, offset, sim = False, 0, self._sim
        while sim.now_ns < self.start_ns + seconds * 1e9:
            for out in sim.tick():
                if out.topic is PATHS:
                    self.routes.take(out.key.encode(), out.value(), None, out.at_ns)
                elif out.topic is PROBES:
                    source = self._sources[partition_of(out.key, PARTITIONS)]
                    source.add(out.columns(), out.at_ns, offset, self._lines)
                    offset += 1
            if not is_scheduled and len(self.routes):
                is_scheduled = True
                plans = plan_shard(dict.fromkeys(sorted(self._members), sim.probes.pace), self.routes)
                for record in records_of(plans, self.settings.shard, self._lines, sim.now_ns).values():
                    sim.probes.follow_schedule(record)
            if sim.ticks % PUBLISH_TICKS == 0:
                records = [record for source in self._sources for record in source.take(self._members)]
                yield sim.now_ns, [encode_columnar(PATH_QUEUEING.type, record) for record in records]


def replay(log: FleetLog, seconds: float) -> Cost:
    """Infer the queues from a log as the stage does; return the cost after the warm-up."""
    queues = ShardQueues(log.settings.shard, lambda link: int(log.rates_bps.get(link, 0)))
    links: set[str] = set()
    spent_s, messages_s, slots = 0.0, 0.0, 0.0
    for now_ns, messages in log.messages(seconds):
        began_s = time.process_time()
        for value in messages:
            record = validate_queueing(decode_columnar(value, PATH_QUEUEING.type), now_ns)
            queues.take(record, log.routes)
        taken_s = time.process_time()
        records = []
        while queues.ready():
            for queue in queues.solve(now_ns):
                codec.encode(QUEUES.type, queue)
                records.append(queue)
        ended_s = time.process_time()
        links.update(link["link"] for queue in records for link in queue["links"])
        if now_ns - log.start_ns > WARM_UP_S * 1e9:
            spent_s += ended_s - began_s
            messages_s += taken_s - began_s
            slots += sum(queue["slots"] for queue in records if queue["slots"] > 1 and not queue["part"])
    slot_links = slots * len(links)
    return Cost(
        1e6 * spent_s / slot_links, 1e6 * messages_s / slot_links, spent_s / (seconds - WARM_UP_S), len(links)
    )


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about ten seconds, or half of that with `quick`."""
    seed, seconds = int(np.random.SeedSequence().generate_state(1)[0]), 8.0 if quick else 14.0
    progress(f"cost of inference: {NICS} NICs, {seconds:g} s, seed {seed}")
    cost = replay(FleetLog(NICS, seed), seconds)
    note = f"{cost.links} links, slots of 250 us, seed {seed}; messages {cost.message_us_per_slot_link:.4f}"
    return {
        "inference_us_per_slot_link": Figure(cost.us_per_slot_link, "us", note),
        "inference_cores_sim64": Figure(cost.cores, "cores", f"slots of their usual length, seed {seed}"),
    }
