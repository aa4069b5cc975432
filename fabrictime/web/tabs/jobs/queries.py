"""Queries of the tab Jobs: one complete interval, present flows, queue pairs of a NIC.

The queries run in the poller's threads. The topic of collectives has too many records for the page to follow.
While a NIC is open, the page reads a few seconds of one job and decodes the records of the NIC's host.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.job_state import Interval
from fabrictime.state.job_story import has_parts
from fabrictime.web.history_client import History, HistoryDown
from fabrictime.web.tabs.jobs import past
from schemas import codec
from schemas.ids import host_of
from schemas.kafka.message import Message
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader, since
from schemas.kafka.settings import KafkaSettings
from schemas.records import CollectiveBatch, Diagnosis, JobFlow
from schemas.topics import COLLECTIVES, DIAGNOSES

KEPT_DIAGNOSES: Final = 16
PAST_NS: Final = 7 * 86_400_000_000_000
"""How far back jobs are listed from the history, ns."""
BATCH_HEAD_END: Final = "end_ns"
"""Last field that is decoded of a batch before it is known to be needed."""
RECENT_NS: Final = 15_000_000_000
"""How far back the newest batches of a job's processes are searched, ns."""
LATE_NS: Final = 10_000_000_000
"""How long after an interval's end its batches may be appended, ns."""
MAX_MESSAGES: Final = 20_000
MAX_DECODED: Final = 64
"""Largest number of processes of one host and job that are decoded."""
MAX_JOBS_ON_NIC: Final = 8
TIMEOUT_S: Final = 4.0
CONNECT_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class NicProfile:
    """Queue pairs of a NIC with the delay of their data, and the growth of the NIC's counters.

    A pair is a QueuePairDelay with `job` and `process`.
    """

    jobs: tuple[str, ...] = ()
    processes: int = 0
    pairs: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class JobQueries:
    """Runs queries about jobs in the poller's threads."""

    def __init__(
        self,
        state: FabricState,
        history: History,
        cluster: KafkaSettings,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._state = state
        self._history = history
        self._now_ns = now_ns
        self._cluster = cluster
        self._registry = cluster.registry()
        self._decoded: OrderedDict[tuple[str, str], Diagnosis] = OrderedDict()

    def diagnosis(self, job: str, key: str | None) -> Diagnosis | None:
        """Return the diagnosis of an interval (`key` None: the newest one) from memory or the history; None
        if there is none.

        Raises HistoryError.
        """
        with self._state.lock:
            message = self._state.jobs.message(job, key)
            earlier = [] if message is None else self._state.jobs.earlier(job, message[0])
        if message is not None:
            newest, value = message
            return self._cached(job, newest, lambda: self._with_parts(value, earlier))
        if key is None:
            return None
        return self._cached(job, key, lambda: past.diagnosis(self._history, job, key))

    def _with_parts(self, value: bytes, earlier: Iterable[bytes]) -> Diagnosis:
        """Return the decoded record. If it has no ranks and flows, it gets those of the nearest earlier
        record.
        """
        record = codec.decode(value, DIAGNOSES.type, self._registry)
        for other in () if has_parts(record) else earlier:
            earlier_record = codec.decode(other, DIAGNOSES.type, self._registry)
            if has_parts(earlier_record):
                return {
                    **record,
                    "time_splits": earlier_record["time_splits"],
                    "flows": earlier_record["flows"],
                }
        return record

    def _cached(self, job: str, key: str, read: Callable[[], Diagnosis | None]) -> Diagnosis | None:
        record = self._decoded.get((job, key)) or read()
        if record is not None:
            self._decoded[job, key] = record
            while len(self._decoded) > KEPT_DIAGNOSES:
                self._decoded.popitem(last=False)
        return record

    def past_jobs(self) -> list[dict[str, Any]]:
        """Return the head of each job's newest diagnosis in the history. Raises HistoryError."""
        return past.jobs(self._history, self._now_ns() - PAST_NS)

    def past_intervals(self, job: str, span_ns: int) -> list[Interval]:
        """Return a job's intervals of the last `span_ns` from the history. Raises HistoryError."""
        return past.intervals(self._history, job, self._now_ns() - span_ns, span_ns)

    def flows(self, job: str) -> list[JobFlow]:
        """Return the present traffic of a job by pair of NICs, from the reports of the hosts."""
        with self._state.lock:
            flows = self._state.flows.flows()
        flow_by_pair: dict[tuple[str, str], JobFlow] = {}
        for flow in flows.values():
            if flow["job"] != job or not flow["peer"]:
                continue
            pair = (flow["nic"], flow["peer"])
            job_flow = flow_by_pair.get(pair)
            if job_flow is None:
                job_flow = flow_by_pair[pair] = JobFlow(
                    nic=flow["nic"],
                    peer=flow["peer"],
                    paths=0,
                    rate_bps=0.0,
                    delay_ns=None,
                    data_ns=None,
                    links=[],
                )
            job_flow["paths"] += 1
            job_flow["rate_bps"] += flow["rate_bps"]
            job_flow["links"] = list(dict.fromkeys([*job_flow["links"], *flow["links"]]))
        return list(flow_by_pair.values())

    def jobs_on(self, nic: str) -> tuple[str, ...]:
        """Return the jobs whose newest diagnosis has traffic or a rank on a NIC."""
        with self._state.lock:
            names = list(self._state.jobs.jobs)
        jobs = []
        for name in reversed(names):
            record = self.diagnosis(name, None)
            if record is not None and _uses(record, nic):
                jobs.append(name)
        return tuple(jobs[:MAX_JOBS_ON_NIC])

    def nic_profile(self, nic: str, job: str | None, span_ns: tuple[int, int] | None) -> NicProfile:
        """Return the queue pairs of a NIC that belong to a job (None: to any job on the NIC), now or in the
        interval `span_ns`.

        Raises HistoryError.
        """
        jobs = (job,) if job is not None else self.jobs_on(nic)
        batches: list[CollectiveBatch] = []
        try:
            for name in jobs:
                batches += self._batches(name, host_of(nic), span_ns)
        except TopicMissing:
            return NicProfile(jobs)
        except LogUnavailable as error:
            raise HistoryDown(str(error)) from error
        return profile_of(batches, nic, jobs)

    def _batches(self, job: str, host: str, span_ns: tuple[int, int] | None) -> list[CollectiveBatch]:
        """Return the newest record of each process on a host, up to now or to the end of an interval."""
        from_ns, to_ns = span_ns or (self._now_ns() - RECENT_NS, self._now_ns())
        newest: dict[tuple[str, str], tuple[int, bytes]] = {}
        with TopicReader(self._cluster, {COLLECTIVES: since(from_ns)}, key=job) as reader:
            reader.connect(CONNECT_TIMEOUT_S)
            for message in _until_end(reader, to_ns + LATE_NS):
                if message.value is None:
                    continue
                try:
                    head = codec.decode_head(
                        message.value, COLLECTIVES.record, BATCH_HEAD_END, self._registry
                    )
                except codec.BadRecord:
                    continue
                if head["host"] != host or head["begin_ns"] >= to_ns:
                    continue
                process = (head["boot"], head["process"])
                if process not in newest or newest[process][0] <= head["batch"]:
                    newest[process] = head["batch"], message.value
        return list(self._records([value for _, value in newest.values()][:MAX_DECODED]))

    def _records(self, values: Sequence[bytes]) -> Iterator[CollectiveBatch]:
        for value in values:
            try:
                yield codec.decode(value, COLLECTIVES.type, self._registry)
            except codec.BadRecord:
                continue


def _until_end(reader: TopicReader, last_ns: int) -> Iterator[Message]:
    """Yield messages up to the log's end or append time `last_ns`, within `MAX_MESSAGES` and `TIMEOUT_S`."""
    end_s, read = time.monotonic() + TIMEOUT_S, 0
    while reader.behind and read < MAX_MESSAGES and time.monotonic() < end_s:
        messages = reader.poll(POLL_S)
        read += len(messages)
        for message in messages:
            if message.append_ns > last_ns:
                return
            yield message


def _uses(record: Diagnosis, nic: str) -> bool:
    return any(split["nic"] == nic for split in record["time_splits"]) or any(
        nic in (flow["nic"], flow["peer"]) for flow in record["flows"]
    )


def profile_of(batches: Iterable[CollectiveBatch], nic: str, jobs: tuple[str, ...]) -> NicProfile:
    """Return the queue pairs and counters of one NIC from records of its host's processes."""
    pairs: list[dict[str, Any]] = []
    counters: dict[str, int] = {}
    processes = 0
    for batch in batches:
        nic_pairs = [pair for pair in batch["queue_pairs"] if pair["nic"] == nic]
        counted = [nic_counters for nic_counters in batch["counters"] if nic_counters["nic"] == nic]
        processes += bool(nic_pairs or counted)
        pairs += [{**pair, "job": batch["job"], "process": batch["process"]} for pair in nic_pairs]
        for counter_values in counted:
            for name, value in counter_values.items():
                if isinstance(value, int):  # every process reports the whole NIC
                    counters[name] = max(counters.get(name, 0), value)
    return NicProfile(jobs, processes, pairs, counters)
