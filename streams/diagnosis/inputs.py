"""Takes the inputs of diagnosis in the order of the log, and returns the diagnoses that follow from them.

`DiagnosisInputs` accepts messages of any partitions in any order. A message waits until the log's clock has
passed its log time. Then messages are processed by (log time, topic, partition, offset), and every job is
evaluated at each full second of log time. So a live worker, a restarted one and a replay publish the same
diagnoses. This module does no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas import codec
from schemas.ids import host_of
from schemas.kafka.message import Message
from schemas.records import CollectiveBatch, Diagnosis, Verdict
from schemas.topics import (
    ACTIONS,
    ALERTS,
    AUDIT,
    CLOCK_OFFSETS,
    COLLECTIVES,
    CONTENTION,
    DECISIONS,
    DELAYS,
    DIAGNOSES,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    MAX_MESSAGE_BYTES,
    PATHS,
    QUEUES,
    Topic,
)
from schemas.unexpected import DATA_ERRORS, refusal
from streams.diagnosis.diagnose import evaluate_case
from streams.diagnosis.job.view import JobView, LastVerdict
from streams.diagnosis.network.table_routes import TableRoutes
from streams.diagnosis.network.view import NetworkView
from streams.diagnosis.record import add_details
from streams.diagnosis.rules import KEEP_NS, DiagnosisRules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Operator, Output, Past, records_of
from streams.runtime.pipeline_constants import DIAGNOSIS_INTERVAL_NS
from streams.runtime.route_table import RouteTable
from streams.runtime.units import NS_PER_S

TICK_NS: Final = NS_PER_S
"""Log time between two evaluations of a job."""
PUBLISH_TICKS: Final = 5
"""Number of evaluations after which an unchanged verdict is published again. It is counted from the Unix
epoch, so that the job's next owner keeps the rhythm."""
WHOLE_TICKS: Final = 60
"""Number of evaluations after which a record of an unchanged HEALTHY job includes its ranks and flows again.
They are 98% of a record's bytes, and explain little while nothing is wrong."""
FAULT_WHOLE_TICKS: Final = 15
"""The same number for other verdicts."""
SILENT_NS: Final = 30 * NS_PER_S
"""Log time without a record after which a job counts as ended."""
MAX_FLOWS: Final = 256
"""Largest number of flows in a published record, the heaviest and slowest: readers fetch hours of records."""
MAX_JOBS: Final = 1000
"""Largest number of jobs of one worker. Records of further jobs are dropped, so that a flood of names does
not fill memory."""
WARM_UP_NS: Final = KEEP_NS
"""Time before its start that a new owner evaluates without publishing; it learns the jobs' baselines from
it."""
TAKEOVER_NS: Final = 15 * NS_PER_S
"""Time before its start for which a new owner publishes again, because nobody owned its jobs meanwhile.
Identities follow from log time, so a record that was already published is only repeated."""
LOOKBACK_NS: Final[Mapping[Topic[Any], int]] = {
    LINK_HEALTH: 0,
    INVENTORY: 0,
    FLOW_ROUTES: 0,
    PATHS: 0,
    COLLECTIVES: KEEP_NS + WARM_UP_NS,
    CONTENTION: KEEP_NS,
    QUEUES: TAKEOVER_NS + 2 * DIAGNOSIS_INTERVAL_NS,
    DELAYS: TAKEOVER_NS + 2 * DIAGNOSIS_INTERVAL_NS,
    FLOWS: TAKEOVER_NS + 2 * DIAGNOSIS_INTERVAL_NS,
    DECISIONS: 600 * NS_PER_S,
    ACTIONS: 600 * NS_PER_S,
    ALERTS: 3600 * NS_PER_S,
    AUDIT: 24 * 3600 * NS_PER_S,
    CLOCK_OFFSETS: TAKEOVER_NS + 2 * DIAGNOSIS_INTERVAL_NS,
}
"""Maps each input to the time before its start from which an owner reads it; 0: from the topic's
beginning."""
NETWORK: Final[tuple[Topic[Any], ...]] = tuple(topic for topic in LOOKBACK_NS if topic is not COLLECTIVES)
"""Inputs that are read only while a job publishes records."""


def read_from(now_ns: int) -> dict[str, int]:
    """Return, by topic, the append time, ns, from which an owner that begins at `now_ns` reads."""
    return {topic.name: max(0, now_ns - back) if back else 0 for topic, back in LOOKBACK_NS.items()}


@dataclass(slots=True)
class _Job:
    view: JobView
    taken_ns: int
    """Append time of the job's newest record, ns."""
    end_ns: int | None = None
    """End of the interval that was evaluated last, ns."""
    verdict: tuple[str, str] | None = None
    """Verdict and subject of the last evaluation."""
    published: int = -1
    """Tick of the last published record, in units of `PUBLISH_TICKS`."""
    full_tick: int = -1
    """Tick of its last record with ranks and flows, in units of `WHOLE_TICKS` or `FAULT_WHOLE_TICKS`."""
    hosts: frozenset[str] = frozenset()
    nics: frozenset[str] = frozenset()


class DiagnosisInputs(Operator):
    """Diagnoses the jobs that its owner is responsible for.

    `from_ns`: log time from which diagnoses are returned; earlier evaluations only teach the jobs' baselines.
    `probes`: routes of probes, if no messages carry them. `log_offset_ns`: fabric time minus append time,
    until a record of clocks states the offset. `past`: diagnoses of the last minutes; the newest diagnosis of
    each job restores its baseline and verdict.
    """

    def __init__(
        self,
        from_ns: int,
        *,
        registry: codec.Registry | None = None,
        rules: DiagnosisRules | None = None,
        probes: RouteTable | None = None,
        log_offset_ns: int = 0,
        past: Iterable[Diagnosis] = (),
    ) -> None:
        super().__init__()
        self.dropped = 0
        """Number of records dropped because they are of jobs beyond `MAX_JOBS`."""
        self._from_ns, self._registry, self._rules = from_ns, registry, rules
        self._log_offset_ns = log_offset_ns
        self._past: dict[str, Diagnosis] = {}
        self._recover(past)
        self._jobs: dict[str, _Job] = {}
        self._network = NetworkView()
        if probes is not None:
            self._network.routes = TableRoutes(self._network.recorded, probes)
        self._heap: list[Message] = []
        self._waiting = 0
        """Number of waiting messages of `fabric.collectives`; each may begin a job."""
        self._last: Message | None = None
        self._tick_ns = 0
        self._nics: set[str] = set()
        self._hosts: set[str] = set()
        self._processors: dict[str, Callable[[Message], None]] = {
            COLLECTIVES.name: self._process_collectives,
            CLOCK_OFFSETS.name: self._process_clocks,
            DELAYS.name: self._process_delays,
            FLOWS.name: self._process_flows,
            AUDIT.name: self._process_audit,
            **{topic.name: self._process_network for topic in _TAKERS},
        }

    @property
    def jobs(self) -> list[str]:
        """Names of the running jobs, sorted."""
        return sorted(self._jobs)

    @property
    def needs_network(self) -> bool:
        """Whether a job is running, or a waiting message may begin a job."""
        return bool(self._jobs or self._waiting)

    def _recover(self, past: Iterable[Diagnosis]) -> None:
        self._past = {
            diagnosis["job"]: diagnosis for diagnosis in sorted(past, key=lambda record: record["number"])
        }

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Restore baselines and verdicts from the diagnoses of the last minutes."""
        self._recover(records_of(past, DIAGNOSES, self._registry))

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Add messages; each waits until the log's clock has passed its log time."""
        for message in messages:
            self.add(message)

    def due_ns(self) -> int:
        """Return the next log time, ns, at which jobs are evaluated or waiting messages are processed."""
        if self._jobs:
            return self._tick_ns + TICK_NS
        return (self._heap[0].log_ns // TICK_NS + 1) * TICK_NS if self._heap else NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Evaluate the jobs at each full second up to `moment`; return the diagnoses to publish."""
        return [
            Output(
                DIAGNOSES,
                record["job"],
                record,
                encoded(record, MAX_MESSAGE_BYTES, self._registry),
                text=f"{record['job']}: {record['verdict']}: {record['text']}",
            )
            for record in self.evaluate(moment.log_ns)
        ]

    def add(self, message: Message) -> None:
        """Add a message; it is processed once the log's clock has passed its log time."""
        heapq.heappush(self._heap, message)
        if message.topic == COLLECTIVES.name:
            self._waiting += 1
            self.late += self._last is not None and message < self._last

    def evaluate(self, to_ns: int) -> list[Diagnosis]:
        """Process messages up to `to_ns`, evaluate jobs at each full second; return diagnoses to publish."""
        out: list[Diagnosis] = []
        while True:
            next_ns = self._heap[0].log_ns if self._heap else to_ns + 1
            due_ns = self._tick_ns + TICK_NS if self._jobs else to_ns + 1
            if due_ns <= min(next_ns, to_ns):
                self._tick_ns = due_ns
                self._evaluate(due_ns, out)
            elif next_ns <= to_ns:
                self._process(heapq.heappop(self._heap))
            else:
                return out

    # ------------------------------------------------------------------------------------------ messages

    def _process(self, message: Message) -> None:
        if message.topic == COLLECTIVES.name:
            self._waiting -= 1
            self._last = message if self._last is None else max(message, self._last)
        try:
            self._processors[message.topic](message)
        except DATA_ERRORS as error:
            if message.topic == COLLECTIVES.name:
                self.rejected.append((message, refusal(error)))

    def _process_collectives(self, message: Message) -> None:
        if message.value is None:
            return
        job = self._jobs.get(message.key)
        if job is None and len(self._jobs) >= MAX_JOBS:
            self.dropped += 1
            return
        record = message.decoded(COLLECTIVES, self._registry)
        if job is None:
            if not self._jobs:  # the first second after this record, not one after the last job's end
                self._tick_ns = message.log_ns // TICK_NS * TICK_NS
            job = self._jobs[message.key] = _Job(self._new_view(message.key), message.log_ns)
        job.view.take(record, message.log_ns)
        job.taken_ns = message.log_ns
        nics = _nics_of(record)
        if record["host"] not in job.hosts or not nics <= job.nics:
            job.hosts |= {record["host"]}
            job.nics |= nics
            self._nics |= nics
            self._hosts |= {record["host"], *map(host_of, nics)}

    def _new_view(self, name: str) -> JobView:
        view, past = JobView(name), self._past.pop(name, None)
        if past is not None:
            view.last = LastVerdict(past["verdict"], past["subject"], past["since_ns"])
            view.causes.note([(past["verdict"], past["subject"], past["since_ns"])], past["end_ns"])
            view.moved.restore(past["links"], past["nics"], past["end_ns"])
            if past["expected_iteration_ns"]:
                view.baselines.restore("iteration", past["expected_iteration_ns"])
            if past["expected_bus_bps"]:
                view.baselines.restore("bus", 1 / past["expected_bus_bps"])
        return view

    def _update_wanted(self) -> None:
        self._nics = {nic for job in self._jobs.values() for nic in job.nics}
        self._hosts = {host for job in self._jobs.values() for host in job.hosts}
        self._hosts |= {host_of(nic) for nic in self._nics}

    def _process_clocks(self, message: Message) -> None:
        if message.value is not None:
            record = message.decoded(CLOCK_OFFSETS, self._registry)
            self._log_offset_ns = self.offset_of(record["log_offset_ns"])
            self._network.take_clocks(record)

    def _process_delays(self, message: Message) -> None:
        if message.value is not None and message.key in self._nics:
            self._network.take_delays(message.decoded(DELAYS, self._registry))

    def _process_flows(self, message: Message) -> None:
        if message.value is not None and message.key in self._hosts:
            self._network.take_flows(message.decoded(FLOWS, self._registry))

    def _process_audit(self, message: Message) -> None:
        if message.value is None:
            return
        head = codec.decode_head(message.value, AUDIT.record, "host", self._registry)
        if head["host"] in self._hosts:
            self._network.take_audit(message.decoded(AUDIT, self._registry))

    def _process_network(self, message: Message) -> None:
        if message.value is None:
            return
        for topic, take in _TAKERS.items():
            if topic.name == message.topic:
                take(self._network, message.decoded(topic, self._registry))

    # ------------------------------------------------------------------------------------------ evaluation

    def _evaluate(self, now_ns: int, out: list[Diagnosis]) -> None:
        self._network.forget(now_ns + self._log_offset_ns)
        ended = []
        for name, job in sorted(self._jobs.items()):
            try:
                diagnosis, is_over = self._evaluate_job(job, now_ns)
            except DATA_ERRORS as error:
                self.failed.append((name, error))
                diagnosis, is_over = None, now_ns - job.taken_ns >= SILENT_NS
            if diagnosis is not None and now_ns >= self._from_ns:
                out.append(diagnosis)
            if is_over:
                ended.append(name)
        for name in ended:
            del self._jobs[name]
        if ended:
            self._update_wanted()

    def _evaluate_job(self, job: _Job, now_ns: int) -> tuple[Diagnosis | None, bool]:
        """Evaluate a job; return the diagnosis to publish (None: unchanged) and whether the job has ended."""
        view = job.view
        view.forget(now_ns)
        is_over = view.has_ended or now_ns - job.taken_ns >= SILENT_NS
        newest_ns = view.newest_ns
        if newest_ns is None:
            return None, True
        end_ns = min(newest_ns, now_ns + self._log_offset_ns)
        if end_ns == job.end_ns and not is_over:
            return None, False
        tick = view.number = now_ns // TICK_NS
        begin_ns = end_ns - DIAGNOSIS_INTERVAL_NS
        case, record = evaluate_case(view, self._network, begin_ns, end_ns, self._rules)
        job.end_ns = end_ns
        verdict = (str(record["verdict"]), record["subject"])
        due = tick // PUBLISH_TICKS
        if verdict == job.verdict and due == job.published and not is_over:
            return None, False
        full_tick = tick // (WHOLE_TICKS if record["verdict"] == Verdict.HEALTHY else FAULT_WHOLE_TICKS)
        if verdict != job.verdict or full_tick != job.full_tick or is_over:
            add_details(case, record)
        job.verdict, job.published, job.full_tick = verdict, due, full_tick
        record["flows"] = record["flows"][:MAX_FLOWS]
        return record, is_over


def _nics_of(record: CollectiveBatch) -> frozenset[str]:
    named = {nic for communicator in record["communicators"] for nic in communicator["nics"]}
    return frozenset(named | {queue_pair["nic"] for queue_pair in record["queue_pairs"]})


_TAKERS: Final[Mapping[Topic[Any], Callable[[NetworkView, Any], None]]] = {
    INVENTORY: NetworkView.take_nic,
    LINK_HEALTH: NetworkView.take_health,
    FLOW_ROUTES: NetworkView.take_routes,
    PATHS: NetworkView.take_paths,
    CONTENTION: NetworkView.take_contention,
    QUEUES: NetworkView.take_queues,
    DECISIONS: NetworkView.take_decision,
    ACTIONS: NetworkView.take_action,
    ALERTS: NetworkView.take_alert,
}


def encoded(record: Diagnosis, max_bytes: int, registry: codec.Registry | None = None) -> bytes:
    """Return a record as encoded bytes. Its last flows and ranks are left out to fit `max_bytes`."""
    value = codec.encode(Diagnosis, record, registry)
    while len(value) > max_bytes and (record["flows"] or record["time_splits"]):
        flows, splits = record["flows"], record["time_splits"]
        if flows:
            record = {**record, "flows": flows[: len(flows) // 2]}
        else:
            record = {**record, "time_splits": splits[: len(splits) // 2]}
        value = codec.encode(Diagnosis, record, registry)
    return value
