"""A small job with known times: its `CollectiveBatch` records, and the network's records around it.

Hosts h0, h1, ... have one NIC `h0/n0` each, two hosts a leaf. Every rank computes, then calls all-reduces
in a ring. A test changes the times of some ranks or pairs and checks the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.records import (
    ClockSync,
    CollectiveBatch,
    CollectiveFunction,
    CollectiveSource,
    ContentionKind,
    ContentionState,
    ContentionWindow,
    Diagnosis,
    Flow,
    FlowProtocol,
    FlowReports,
    FlowState,
    HealthKind,
    KeptReason,
    LinkHealth,
    LinkState,
    Nic,
    PathDelays,
    PathMaps,
)
from streams.diagnosis.diagnose import evaluate_case
from streams.diagnosis.job.view import JobView
from streams.diagnosis.network.view import NetworkView
from streams.diagnosis.record import add_details
from tests.records import make, make_part

MS = 1_000_000
US = 1_000
S = 1_000_000_000
BEGIN = 1_700_000_000 * S
JOB = "train"


OPERATION: dict[str, Any] = make_part(
    "CollectiveBatch",
    "CollectiveOperation",
    function=CollectiveFunction.ALL_REDUCE,
    kept=KeptReason.ALL,
)


def nic(host: int) -> str:
    return f"h{host}/n0"


def leaf(host: int) -> str:
    return f"leaf{host // 2}"


def route(source: int, target: int, spine: int) -> list[str]:
    up = f"h{source}:n0>{leaf(source)}:d{source}"
    down = f"{leaf(target)}:d{target}>h{target}:n0"
    if leaf(source) == leaf(target):
        return [up, down]
    return [
        up,
        f"{leaf(source)}:u{spine}>spine{spine}:p{source // 2}",
        f"spine{spine}:p{target // 2}>{leaf(target)}:u{spine}",
        down,
    ]


@dataclass
class Job:
    """Times of a job, in ns; callables take (rank, iteration)."""

    ranks: int = 8
    name: str = JOB
    communicator: str = "0xc0ffee"
    compute: Callable[[int, int], float] = lambda rank, at: 8.0 * MS
    network: Callable[[int, int], float] = lambda rank, at: 4.0 * MS
    launch: Callable[[int, int], float] = lambda rank, at: 0.0
    flush: Callable[[int, int], float] = lambda rank, at: 0.0
    gpu: Callable[[int, int], float] = lambda rank, at: 0.0
    pair_us: Callable[[int, int], float] = lambda rank, at: 4.0
    """us from post to completion towards the next rank."""
    split: bool = False
    """Whether records contain the split of each operation, as those of NCCL do."""
    own_share: float = 1.0
    """Part of moving data in which a rank itself waits for the network. In the rest it waits for others."""
    queue_pairs: bool = True
    bound_ns: float = 500.0
    jitter: float = 0.01
    buckets: int = 2
    bucket_bytes: int = 1 << 20
    nics: bool = True
    seed: int = 1
    at_ns: int = BEGIN
    iteration: int = 0
    seq: int = 0
    process_number: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    """ns by which a rank's clock is wrong."""
    unsynced: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def run(self, length_ns: int = S) -> list[CollectiveBatch]:
        """Return the records of the next interval, one a rank."""
        until_ns = self.at_ns + length_ns
        operations: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(self.ranks)}
        begin_ns = self.at_ns
        while self.at_ns < until_ns:
            self._iterate(operations)
        return [
            self.batch(rank, operations[rank], begin_ns, self.at_ns)
            for rank in range(self.ranks)
            if rank not in self.silent
        ]

    def _iterate(self, operations: dict[int, list[dict[str, Any]]]) -> None:
        free = np.full(self.ranks, float(self.at_ns))
        for bucket in range(self.buckets):
            compute = np.array([self.compute(r, self.iteration) / self.buckets for r in range(self.ranks)])
            call = free + compute * (1 + self.jitter * self.rng.standard_normal(self.ranks).clip(-3, 3))
            launch = np.array([self.launch(r, self.iteration) for r in range(self.ranks)])
            arrival = call + launch
            moving = max(self.network(r, self.iteration) / self.buckets for r in range(self.ranks))
            moving *= 1 + self.jitter * abs(self.rng.standard_normal())
            for rank in range(self.ranks):
                extra = self.flush(rank, self.iteration) + self.gpu(rank, self.iteration)
                free[rank] = arrival.max() + moving + extra
            free[:] = free.max()
            for rank in range(self.ranks):
                operations[rank].append(
                    self._operation(rank, bucket, call[rank], launch[rank], arrival, moving, free[rank])
                )
            self.seq += 1
        self.iteration += 1
        self.at_ns = int(free.max())

    def _operation(
        self, rank: int, bucket: int, call: float, launch: float, arrival: Any, moving: float, end: float
    ) -> dict[str, Any]:
        off = self.offsets.get(rank, 0)
        found: dict[str, Any] = OPERATION | {
            "seq": self.seq,
            "bytes": (bucket + 1) * self.bucket_bytes,
            "begin_ns": int(call) + off,
            "end_ns": int(end) + off,
            "launch_ns": int(launch),
        }
        if self.split:
            found |= {
                "gpu_late_ns": int(self.gpu(rank, self.iteration)),
                "peer_late_ns": int(arrival.max() - arrival[rank] + (1 - self.own_share) * moving),
                "network_late_ns": int(self.own_share * moving),
                "flush_ns": int(self.flush(rank, self.iteration)),
                "sampled_share": 1.0,
            }
        return found

    def batch(
        self, rank: int, operations: list[dict[str, Any]], begin_ns: int, end_ns: int, **fields: Any
    ) -> CollectiveBatch:
        """Return a record of one rank."""
        number = self.process_number.get(rank, 0)
        self.process_number[rank] = number + 1
        communicator = make_part(
            "CollectiveBatch",
            "Communicator",
            id=self.communicator,
            rank=rank,
            ranks=self.ranks,
            nodes=self.ranks,
            nics=[nic(rank)] if self.nics else [],
        )
        pairs = []
        if self.queue_pairs and operations:
            peer = (rank + 1) % self.ranks
            delay_ns = int(self.pair_us(rank, self.iteration) * US)
            pairs.append(
                make_part(
                    "CollectiveBatch",
                    "QueuePairDelay",
                    nic=nic(rank),
                    flow_id=self.flow_id(rank),
                    queue_pair=7,
                    peer=peer,
                    count=100,
                    bytes=100 << 10,
                    min_ns=delay_ns * 9 // 10,
                    mean_ns=delay_ns,
                    p99_ns=delay_ns * 3 // 2,
                    max_ns=2 * delay_ns,
                )
            )
        return make(
            CollectiveBatch,
            **{
                "job": self.name,
                "host": f"h{rank}",
                "boot": "b",
                "process": f"{100 + rank}-1",
                "batch": number,
                "shard": "fabric",
                "source": CollectiveSource.SIMULATION,
                "version": "1",
                "begin_ns": begin_ns,
                "end_ns": end_ns,
                "clock": ClockSync.UNSYNCED if rank in self.unsynced else ClockSync.SYNCED,
                "bound_ns": self.bound_ns,
                "communicators": [communicator],
                "operations": operations,
                "queue_pairs": pairs,
                **fields,
            },
        )

    def flow_id(self, rank: int) -> str:
        return f"h{rank}/b/qp:n0:7:1"

    def flow(self, rank: int, **fields: Any) -> Flow:
        """Return the flow of a rank towards the next one."""
        peer = (rank + 1) % self.ranks
        return make_part(
            "FlowReports",
            "Flow",
            **{
                "flow_id": self.flow_id(rank),
                "state": FlowState.OPEN,
                "nic": nic(rank),
                "peer": nic(peer),
                "source_address": "10.0.0.1",
                "peer_address": "10.0.0.2",
                "source_port": 50_000 + rank,
                "peer_port": 4791,
                "protocol": FlowProtocol.ROCE,
                "links": route(rank, peer, rank % 2),
                "job": self.name,
                "interval_ns": S,
                "rate_bps": 4e10,
                **fields,
            },
        )


@dataclass
class Pipeline(Job):
    """Ranks that exchange messages in a ring: each computes, sends to the next one, and receives from the one
    before it. MPI takes a message at once; it arrives after `network`."""

    send: Callable[[int, int], float] = lambda rank, at: 0.01 * MS
    """Duration of a send, ns."""
    free: Any = None

    def _iterate(self, operations: dict[int, list[dict[str, Any]]]) -> None:
        free = np.full(self.ranks, float(self.at_ns)) if self.free is None else self.free
        compute = np.array([self.compute(rank, self.iteration) for rank in range(self.ranks)])
        begin = free + compute * (1 + self.jitter * self.rng.standard_normal(self.ranks).clip(-3, 3))
        sent = begin + np.array([self.send(rank, self.iteration) for rank in range(self.ranks)])
        arrives = begin + np.array([self.network(rank, self.iteration) for rank in range(self.ranks)])
        self.free = np.maximum(sent, np.roll(arrives, 1)) + 0.01 * MS
        for rank in range(self.ranks):
            for function, peer, *times in (
                (CollectiveFunction.SEND, rank + 1, begin[rank], sent[rank]),
                (CollectiveFunction.RECEIVE, rank - 1, sent[rank], self.free[rank]),
            ):
                begin_ns, end_ns = map(int, times)
                operations[rank].append(
                    OPERATION
                    | {"function": function, "peer": peer % self.ranks, "seq": self.seq, "bytes": 4096}
                    | {"begin_ns": begin_ns, "end_ns": end_ns}
                )
        self.seq += 1
        self.iteration += 1
        self.at_ns = int(self.free.max())


def evaluate(view: JobView, network: NetworkView, begin_ns: int, end_ns: int) -> Diagnosis:
    """Return the verdict about a job in its next interval with all details."""
    case, diagnosis = evaluate_case(view, network, begin_ns, end_ns)
    add_details(case, diagnosis)
    return diagnosis


class World:
    """A job, the network around it, and their views."""

    def __init__(self, job: Job, *, flows: bool = True, probes: bool = True) -> None:
        self.job, self.flows, self.probes = job, flows, probes
        self.view, self.network = JobView(job.name), NetworkView()
        self.flow_fields: Mapping[int, dict[str, Any]] = {}
        self.probe_us: Callable[[int, int], float] = lambda source, target: 5.0
        self.classes: tuple[int, ...] = (0,)
        """DSCPs of the probes."""
        self.marked: Callable[[int, int], int] = lambda source, dscp: 0
        """Requests of 100 that arrive marked CE, by sender and class."""
        self.window = 0
        for host in range(job.ranks):
            self.network.take_nic(
                make(Nic, nic=nic(host), shard="fabric", rail=0, clock=f"h{host}/ptp0", speed_bps=10**11)
            )

    def step(self, length_ns: int = S) -> Diagnosis:
        """Run the job for an interval, and return the verdict about it."""
        begin_ns = self.job.at_ns
        batches = self.job.run(length_ns)
        return self.diagnose(batches, begin_ns, self.job.at_ns)

    def diagnose(self, batches: list[CollectiveBatch], begin_ns: int, end_ns: int) -> Diagnosis:
        for each in batches:
            self.view.take(each, end_ns)
        self._report(begin_ns, end_ns)
        self.view.forget(end_ns)
        self.network.forget(end_ns)
        return evaluate(self.view, self.network, begin_ns, end_ns)

    def learn(self, intervals: int = 5) -> Diagnosis:
        """Run the job at its baseline."""
        for _ in range(intervals):
            found = self.step()
        return found

    def _report(self, begin_ns: int, end_ns: int) -> None:
        self.window += 1
        for rank in range(self.job.ranks):
            if self.flows:
                flow = self.job.flow(rank, **self.flow_fields.get(rank, {}))
                self.network.take_flows(
                    make(
                        FlowReports,
                        host=f"h{rank}",
                        boot="b",
                        shard="fabric",
                        system_ns=end_ns,
                        report=self.window,
                        whole=True,
                        flows=[flow],
                    )
                )
            if self.probes:
                peer = (rank + 1) % self.job.ranks
                delay_ns = self.probe_us(rank, peer) * US
                paths = [
                    make_part(
                        "PathDelays",
                        "PathDelay",
                        peer=nic(peer),
                        path=50_000 + rank,
                        count=100,
                        forward_min_ns=4_500.0,
                        forward_p50_ns=delay_ns,
                        forward_p99_ns=2 * delay_ns,
                        rtt_min_ns=9_000.0,
                        rtt_p50_ns=2 * delay_ns,
                        rtt_p99_ns=4 * delay_ns,
                        bound_ns=100.0,
                        dscp=dscp,
                        ecn=100,
                        forward_ce=self.marked(rank, dscp),
                    )
                    for dscp in self.classes
                ]
                self.network.take_delays(
                    make(
                        PathDelays,
                        nic=nic(rank),
                        shard="fabric",
                        window=self.window,
                        parts=1,
                        window_start_ns=begin_ns,
                        window_end_ns=end_ns,
                        state=ClockSync.SYNCED,
                        paths=paths,
                    )
                )

    def trace_all_paths(self, spines: int = 8) -> None:
        """Let the probes of each pair of ranks cross so many spines."""
        for source in range(self.job.ranks):
            target = (source + 1) % self.job.ranks
            paths = [
                make_part(
                    "PathMaps",
                    "PathMap",
                    path=60_000 + spine,
                    leg="REQUEST",
                    links=route(source, target, spine),
                    found="TRACED",
                    complete=True,
                )
                for spine in range(spines)
            ]
            self.network.take_paths(
                make(PathMaps, nic=nic(source), peer=nic(target), shard="fabric", paths=paths)
            )

    def health(self, link: str, state: LinkState, since_ns: int, seq: int = 1, **fields: Any) -> None:
        near, far = link.split(">")
        self.network.take_health(
            make(
                LinkHealth,
                **{
                    "subject": "<>".join(sorted((near, far))),
                    "kind": HealthKind.LINK,
                    "shard": "fabric",
                    "seq": seq,
                    "state": state,
                    "before": "UP",
                    "links": [link],
                    "since_ns": since_ns,
                    "evaluated_ns": since_ns,
                    "text": f"{link} {state}",
                    **fields,
                },
            )
        )

    def contend(
        self,
        link: str,
        opened_ns: int,
        *,
        other: str | None = "other",
        share: float = 0.5,
        kind: ContentionKind = ContentionKind.COLLISION,
        own: int = 0,
        **fields: Any,
    ) -> None:
        """Add a contention window of the job's rank `own` and another job on a link."""
        part = {"nic": nic(own), "peer": nic((own + 1) % self.job.ranks), "rate_bps": 4e10}
        flows = [
            make_part(
                "ContentionWindow",
                "ContendingFlow",
                flow_id=self.job.flow_id(own),
                job=self.job.name,
                share=1 - share if other else 1.0,
                **part,
            )
        ]
        if other:
            flows.append(
                make_part(
                    "ContentionWindow",
                    "ContendingFlow",
                    flow_id="h90/b/qp:n0:1:1",
                    job=other,
                    nic="h90/n0",
                    peer="h91/n0",
                    rate_bps=4e10,
                    share=share,
                )
            )
        self.network.take_contention(
            make(
                ContentionWindow,
                **{
                    "link": link,
                    "shard": "fabric",
                    "state": ContentionState.OPENED,
                    "kind": kind,
                    "confidence": 0.9,
                    "opened_ns": opened_ns,
                    "updated_ns": opened_ns + S,
                    "depth_bytes": 5e5,
                    "delay_ns": 9e4,
                    "rate_bps": 10**11,
                    "flows": flows,
                    "flows_total": len(flows),
                    "jobs": sorted({f["job"] for f in flows}),
                    "text": "queue",
                    **fields,
                },
            )
        )


def slow(world: World, times: float = 3.0) -> None:
    """Let the network of a job take several times as long."""
    world.job.network = lambda rank, at: times * 4.0 * MS


def slow_world(pair: int | None = None, **job: Any) -> World:
    """Return a job that was fast and is slow, with a slow queue pair of rank `pair`."""
    world = World(Job(**job))
    world.learn()
    slow(world)
    if pair is not None:
        world.job.pair_us = lambda rank, at: 94.0 if rank == pair else 4.0
    return world
