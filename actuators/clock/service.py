"""Updates the clock pages of this host, or of all simulated hosts on this machine.

It runs until SIGTERM or SIGINT. The pages stay, and each page states how long it is valid.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final

from actuators.clock.consumer import ClockConsumer
from actuators.clock.discipline import Discipline
from actuators.clock.host_clock import HostClock, PageParameters
from actuators.clock.page import Content, PageFile
from actuators.clock.sources import Sources, cross_timestamp_system
from actuators.settings import ActuatorSettings, HostSettings, default_directory
from native.core.hostclock import raw_ns
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.process_part import Part, own_process
from schemas.records import ClockOffsets, ClockSync, Nic
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest
from schemas.units import counted

_log = logging.getLogger(__name__)

_LEADS_NS: Final = (500_000, 1_500_000, 4_000_000)
"""Times until a new model starts, to leave time to encode it; the next is used if one is too short."""
_LATE_NS: Final = 5_000
"""Tolerated delay of the write: in this time, two models cannot differ by 1 ns."""
_TRIES: Final = 20
_STATUS_S: Final = 5.0
_NS_PER_S: Final = 1e9


def this_host(settings: ActuatorSettings) -> HostSettings:
    """Return the settings of this machine as a host, with the page at its configured or default path."""
    return HostSettings(
        host=settings.host or socket.gethostname(),
        clock_file=settings.clock_file or default_directory() / "clock",
    )


class HostPage:
    """The clocks, the page and the clock discipline of one host."""

    def __init__(self, settings: ActuatorSettings, host: HostSettings) -> None:
        """Open the host's page and clocks. Raises PageError, OSError."""
        self.host = host
        self.file = PageFile(host.clock_file, host.host, settings.readable)
        parameters = PageParameters(
            settings.wander_ppb_per_sqrt_s,
            settings.holdover_after_s,
            settings.expires_s,
            settings.slew_s,
            settings.slew_max_ppm,
            settings.step_us,
        )
        self.clock = HostClock(host.host, parameters, self.file.last)
        self.sources = Sources(host.test_clocks)
        self.content = Content()
        self.late = 0
        """Number of times that a new model missed its start time and was deferred to the next update."""
        self._late_streak = 0
        self._gone = False
        self._settings = settings
        self.discipline: Discipline | None = None
        if settings.discipline.mode != "off":
            rate_file = host.clock_file.with_name(f"{host.clock_file.name}.rate")
            self.discipline = Discipline(settings.discipline, rate_file)
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield state, error bound and steps of the page as metrics."""
        content = self.content
        for state in ClockSync:
            yield Sample("fabrictime_clock_pages", content.state == state, (state,))
        if content.state != ClockSync.UNSYNCED:
            yield Sample("fabrictime_clock_page_bound_seconds", content.slewed.bound_at(raw_ns()) / _NS_PER_S)
        yield Sample("fabrictime_clock_page_steps_total", content.steps)

    def step(self, now_s: float) -> None:
        """Read this host's clocks and write the page."""
        names = {*self.clock.clocks, *self.host.test_clocks}
        if self.discipline is not None:
            names.add(self._settings.discipline.clock)
        if self.clock.take_boot_time(cross_timestamp_system(time.CLOCK_BOOTTIME)):
            _log.warning("%s: its raw clock stood still: UNSYNCED until measured again", self.host.host)
        cross_timestamps = self.sources.read(names)
        for name, cross_timestamp in cross_timestamps.items():
            self.clock.add_cross_timestamp(name, cross_timestamp)
        if not self.file.in_place():
            self._recreate()
        self._write()
        if self.discipline is not None:
            clock = self._settings.discipline.clock
            if clock in cross_timestamps:
                row = self.content.clocks.get(clock)
                self.discipline.step(row, cross_timestamps[clock].clock_ns, now_s)

    def _recreate(self) -> None:
        """Replace a page file that another program removed or replaced; fabric time continues unchanged."""
        try:
            file = PageFile(self.host.clock_file, self.host.host, self._settings.readable)
        except OSError as error:
            if not self._gone:
                _log.warning("%s: its page is gone and cannot be recreated: %s", self.host.host, error)
            self._gone = True
            return
        _log.warning("%s: %s was gone and has been recreated", self.host.host, file.path)
        self._gone = False
        self.file.retire()
        self.file.close()
        self.file = file

    def _write(self) -> None:
        """Write the page. A new model is written at its start time, so that time never runs backwards."""
        begin_ns = raw_ns()
        if not self.clock.has_new_model(begin_ns):
            content = self.clock.content(begin_ns)
            self.file.write(content)
        else:
            may_defer = self._late_streak < _TRIES
            for lead_ns in _LEADS_NS:
                begin_ns = raw_ns() + lead_ns
                content = self.clock.content(begin_ns)
                if self.file.write(content, begin_ns, begin_ns + _LATE_NS if may_defer else 2**63 - 1):
                    break
            else:
                self.late += 1
                self._late_streak += 1
                return
            self._late_streak = 0
        self.clock.written()
        if content.state != self.content.state or content.steps != self.content.steps:
            _log.info(
                "%s: %s from %s, window %d, %d steps",
                self.host.host,
                content.state,
                content.source or "no clock",
                content.window,
                content.steps,
            )
        self.content = content

    def close(self) -> None:
        """Restore the rate of a disciplined clock, and close all files."""
        SOURCES.remove(self.samples)
        if self.discipline is not None:
            self.discipline.close()
        self.sources.close()
        self.file.close()


def main(
    settings: ActuatorSettings, hosts: Sequence[HostSettings] | None = None, part: Part | None = None
) -> int:
    """Update the clock pages of `hosts` (None: this host) until stopped. Return 0; 2 if unable to start."""
    stopping, notify = part or own_process()
    pages: list[HostPage] = []
    served = [this_host(settings)] if hosts is None else list(hosts)
    if settings.discipline.mode != "off" and (len(served) != 1 or served[0].test_clocks):
        _log.error(
            "discipline.mode %s: expected one host with real clocks, %d here",
            settings.discipline.mode,
            len(served),
        )
        return 2
    try:
        for host in served:
            pages.append(HostPage(settings, host))
    except OSError as error:
        _log.error("%s", error if error.strerror is None else f"{error.filename or ''}: {error.strerror}")
        for page in pages:
            page.close()
        return 2
    try:
        _run(settings, pages, notify, stopping)
    finally:
        notify.notify("STOPPING=1")
        for page in pages:
            page.close()
    return 0


def _run(
    settings: ActuatorSettings, pages: list[HostPage], notify: ServiceNotifier, stopping: StopRequest
) -> None:
    def take_nic(nic: str, record: Nic | None) -> None:
        for page in pages:
            page.clock.take_nic(nic, record)

    def take_offsets(record: ClockOffsets) -> None:
        now_ns = raw_ns()
        for page in pages:
            page.clock.take_offsets(record, now_ns)

    def wanted(shard: str) -> bool:
        shards = {shard for page in pages for shard in page.clock.shards}
        return not shards or shard in shards

    consumer = ClockConsumer(
        settings.kafka,
        settings.window_ms * 1_000_000,
        take_nic,
        take_offsets,
        settings.kafka.registry(),
        wanted,
    )
    refresh_s = settings.refresh_ms / 1000
    due_s = status_at_s = time.monotonic()
    ready = False
    try:
        while not stopping.is_set():
            consumer.poll(timeout_s=max(0.0, min(0.05, due_s - time.monotonic())))
            if not consumer.assigned:
                stopping.wait(0.05)
            now_s = time.monotonic()
            if now_s >= due_s:
                for page in pages:
                    page.step(now_s)
                due_s = max(due_s + refresh_s, now_s)
            if consumer.assigned and not ready:
                ready = True
                _log.info("%d clock pages, the first %s", len(pages), pages[0].file.path if pages else "none")
                notify.notify("READY=1")
            if now_s >= status_at_s:
                status_at_s = now_s + _STATUS_S
                notify.notify(f"STATUS={_status(pages, consumer)}")
                notify.notify("WATCHDOG=1")
    finally:
        consumer.close()


def _status(pages: list[HostPage], consumer: ClockConsumer) -> str:
    now_ns = raw_ns()
    states = [page.content.state for page in pages]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    bounds = [
        page.content.slewed.bound_at(now_ns) for page in pages if page.content.state != ClockSync.UNSYNCED
    ]
    worst = f", worst bound {max(bounds):,.0f} ns" if bounds else ""
    steps = sum(page.content.steps for page in pages)
    disciplined = "".join(f"; {page.discipline.status}" for page in pages if page.discipline is not None)
    unreadable = "".join(f"; {line}" for page in pages for line in page.sources.unreadable.values())
    return (
        f"{counted(len(pages), 'clock page')}: {counts}{worst}, {steps} steps, {consumer.rejected} refused"
        f"{disciplined}{unreadable}"
    )
