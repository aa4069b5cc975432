"""Receives the segments of one host's processes, reads their events and builds their records.

It uses neither Kafka nor signals: `put` publishes a record and calls back when the log has acknowledged it.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from producers.collectives.listener import Listener, Passed, ProcessId, is_alive
from producers.collectives.nic_counters import NicCounters
from producers.collectives.process import Origin, TracedProcess
from producers.collectives.ras.jobs import Place, RasJobs
from producers.collectives.reports import Recorded, RecorderDumps
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import HostClock, Timeline
from producers.ports.device import rdma_ports
from producers.settings import NicSettings
from schemas import codec
from schemas.ids import nic_id
from schemas.records import CollectiveBatch, CollectiveSource, NicCounter
from schemas.socket_access import access_of, owned_name

_log = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
_COUNTERS_S: Final = 1.0
_ALIVE_S: Final = 0.5
"""Interval of the checks whether a process without a connection still runs."""
_RECONNECT_S: Final = 3.0
"""Time within which a process in another PID namespace must connect again; profilers try every 0.5 s."""

Put = Callable[[str, bytes, Callable[[], None]], None]
"""Publishes an encoded record under a job's name, and calls back when the log has acknowledged it."""


class ReportedHost(NamedTuple):
    """A host with its socket and its clock page. If the page is None, the machine's default page is used."""

    host: str
    boot: str
    nics: Sequence[NicSettings]
    socket: Path
    clock_file: Path | None
    reads_dumps: bool = True
    """True if it reads the folder of Flight Recorder dumps, which the hosts of one machine share."""


class Counts(NamedTuple):
    """Counts of a host's jobs, processes and refused or dropped items, for the status line."""

    jobs: frozenset[str]
    processes: int
    dropped: int
    invalid: int
    refused: int


@dataclass(slots=True)
class _Entry:
    """A process with its segment. `lost_s`: monotonic time at which its connection ended, None before."""

    process: ProcessId
    traced: TracedProcess
    drain_at_s: float = 0.0
    lost_s: float | None = None
    alive_at_s: float = 0.0
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counter totals of the host's NICs at the process's last record."""


class HostReporter:
    """Reports the processes of one host's jobs. Raises OSError if its socket or its NICs cannot be opened."""

    def __init__(
        self,
        settings: CollectiveSettings,
        host: ReportedHost,
        selector: selectors.BaseSelector,
        registry: codec.Registry | None = None,
    ) -> None:
        self._settings, self._host, self._registry = settings, host, registry
        self._clock = HostClock(host.clock_file)
        self._timeline = Timeline()
        self._entries: dict[int, _Entry] = {}
        self._now_s = 0.0
        self._counters: NicCounters | None = None
        self._counters_at_s = 0.0
        self._nic_ids = tuple(nic_id(nic.host, nic.device) for nic in host.nics)
        self._nic_of_device: dict[str, str] = {}
        self._shard = host.nics[0].shard if host.nics else ""
        netns = host.nics[0].netns if host.nics else None
        self._dumps = RecorderDumps(settings, host.host, reads=host.reads_dumps)
        self._ras = RasJobs(settings, Place(host.host, host.boot, self._shard, netns))
        self._listener = Listener(
            host.socket,
            selector,
            settings.segment_bytes,
            self._take,
            self._lost,
            access_of(settings.socket_users),
        )
        self.fault: str | None = None
        """One line if profilers cannot reach the socket."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no process whose segment is read."""
        return not self._entries

    @property
    def processes(self) -> list[TracedProcess]:
        """The connected processes, in the order of their first connection."""
        return [entry.traced for entry in self._entries.values()]

    @property
    def host(self) -> ReportedHost:
        """The host whose processes are reported."""
        return self._host

    @property
    def counts(self) -> Counts:
        """Counts of reported jobs, processes, their dropped and refused events, and refused connections."""
        traced = self.processes
        events = [process.counts for process in traced]
        return Counts(
            frozenset(process.job for process in traced if process.job is not None) | self._ras.names,
            len(traced),
            sum(dropped for dropped, _ in events),
            sum(invalid for _, invalid in events),
            self._listener.refused,
        )

    # ---- connections

    def _take(self, passed: Passed) -> str | None:
        """Start reading a new segment, or mark a known one as connected; return why if it is refused."""
        entry = self._entries.get(passed.inode)
        if entry is not None:
            passed.reader.close()
            entry.lost_s = None
            return None
        if len(self._entries) >= self._settings.processes:
            return f"{self._settings.processes} processes are connected already"
        name = process_name(passed)
        traced = TracedProcess(
            passed.reader,
            Origin(self._host.host, self._host.boot, self._shard, name, passed.user),
            self._settings,
            self._timeline,
            self._nic_ids,
            self._nic_of,
            self._now_s,
            self._registry,
            passed.process.pid,
        )
        self._entries[passed.inode] = _Entry(passed.process, traced)
        job = owned_name(passed.reader.job, passed.user)
        _log.info("%s: process %s of job %s", self._host.host, name, job or "without a name")
        return None

    def _lost(self, inode: int) -> None:
        entry = self._entries.get(inode)
        if entry is not None:
            entry.lost_s, entry.alive_at_s = self._now_s, 0.0

    def _nic_of(self, device: str) -> str | None:
        """Return the NIC that uses an RDMA device; None if no NIC of the host does."""
        if device not in self._nic_of_device:
            for nic in self._host.nics:
                ports = rdma_ports(nic.device, Path("/sys"), nic.netns is None)
                names = {port.parent.parent.name for port in ports} | {nic.rdma_device, nic.device}
                if device in names:
                    self._nic_of_device[device] = nic_id(nic.host, nic.device)
        return self._nic_of_device.get(device)

    # ---- records

    def step(self, now_s: float, put: Put, may_put: Callable[[], bool]) -> float:
        """Read segments, publish due records while the queue accepts them; return when to call again, s."""
        self._now_s = now_s
        self.fault = self._listener.check(now_s)
        for dump in self._dumps.poll(now_s):
            self._publish_dump(dump, put)
        for record in self._ras.poll(now_s, self.processes, self._clock.read):
            self._put(record, put)
        if not self._entries:
            self._stop_counters()
            return now_s + _IDLE_S
        self._timeline.add(self._clock.read())
        self._read_counters(now_s)
        for inode, entry in list(self._entries.items()):
            if now_s >= entry.drain_at_s:
                entry.drain_at_s = now_s + entry.traced.drain_s(entry.traced.drain())
            self._check_alive(entry, now_s)
            entry.traced.activity.sample(now_s)
            if may_put() and entry.traced.is_due(now_s):
                self._publish(entry, now_s, put)
            if entry.traced.ended and entry.traced.gone:
                entry.traced.close()
                del self._entries[inode]
        return min((entry.drain_at_s for entry in self._entries.values()), default=now_s)

    def _publish(self, entry: _Entry, now_s: float, put: Put) -> None:
        totals = self._counters.totals() if self._counters is not None else {}
        grown: list[NicCounter] = NicCounters.increments(entry.counters, totals, entry.traced.nics)
        if entry.traced.make(now_s, grown if entry.counters else ()) is not None:
            job, value = entry.traced.in_flight or ("", b"")
            put(job, value, entry.traced.acknowledged)
        entry.counters = totals

    def _publish_dump(self, dump: Recorded, put: Put) -> None:
        record = self._dumps.record(dump, self._host.boot, self._shard, self._clock.read(), self.processes)
        if record is not None:
            self._put(record, put)

    def _put(self, record: CollectiveBatch, put: Put) -> None:
        put(record["job"], codec.encode(CollectiveBatch, record, self._registry), lambda: None)

    def _check_alive(self, entry: _Entry, now_s: float) -> None:
        if entry.lost_s is None or now_s < entry.alive_at_s:
            return
        entry.alive_at_s = now_s + _ALIVE_S
        is_foreign = entry.process.pid == 0 and now_s - entry.lost_s >= _RECONNECT_S
        entry.traced.gone = is_foreign or not is_alive(entry.process)

    def _read_counters(self, now_s: float) -> None:
        """Read the NICs' counters at most once a second; call only while a process is connected."""
        if self._counters is None:
            try:
                self._counters = NicCounters(self._host.nics)
            except OSError as error:
                if self._counters_at_s == 0.0:
                    _log.warning("%s: counters of its NICs: %s", self._host.host, error)
                self._counters_at_s = now_s
                return
        if now_s >= self._counters_at_s:
            self._counters_at_s = now_s + _COUNTERS_S
            self._counters.read()

    def _stop_counters(self) -> None:
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def close(self) -> None:
        """Close the socket and all segments. The processes then pass their segments to the next reporter."""
        self._listener.close()
        for entry in self._entries.values():
            entry.traced.close()
        self._entries.clear()
        self._stop_counters()
        self._clock.close()


def process_name(passed: Passed) -> str:
    """Return the name of a process in records: its process id and start time.

    The profiler's name is added if the process may have another profiler beside NCCL's.
    """
    start = passed.process.ticks or passed.reader.created_raw_ns
    name = f"{passed.process.pid}-{start}"
    is_nccl = passed.reader.source in (CollectiveSource.NCCL, CollectiveSource.RCCL)
    return name if is_nccl else f"{name}-{passed.reader.source.lower()}"
