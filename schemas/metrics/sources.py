"""The functions of this process that read its metrics from objects with counters.

`SOURCES.add(self.samples)` registers a method until its object is collected. No value is computed until an
endpoint is scraped. Counters of collected objects stay in the totals, so a process's counters never decrease.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Final
from weakref import WeakMethod

from schemas.metrics.base import Detail, Sample, Series, add_to, samples_of
from schemas.metrics.table import METRIC_OF_SAMPLE
from schemas.repeat_filter import RepeatFilter

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Sample]]
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


class _Entry:
    """One source, and the values of its cumulative samples at the last scrape."""

    def __init__(self, source: Source) -> None:
        self._weak = WeakMethod(source) if inspect.ismethod(source) else None
        self._strong = None if self._weak is not None else source
        self.last: dict[Series, float] = {}

    @property
    def source(self) -> Source | None:
        """The function that returns the samples; None once its object has been collected."""
        return self._strong if self._weak is None else self._weak()


class Sources:
    """The registered sources of one process. Methods may be called from any thread."""

    def __init__(self, details: Set[Detail] = frozenset()) -> None:
        self.details = details
        """The details that the settings switch on."""
        self.errors = 0
        """Number of failed reads of a source."""
        self._entries: list[_Entry] = []
        self._retired: dict[Series, float] = {}
        """Totals of the sources that are gone."""
        self._lock = threading.Lock()
        self._repeats = RepeatFilter()

    def add(self, source: Source) -> None:
        """Register a source: a function for good, or a method until its object is collected."""
        entry = _Entry(source)
        with self._lock:
            self._entries.append(entry)

    def remove(self, source: Source) -> None:
        """Read a source for the last time; its counters stay in the totals."""
        with self._lock:
            entries = [entry for entry in self._entries if entry.source == source]
        for entry in entries:
            self._read(entry, source)
            with self._lock:
                self._retire(entry)

    def collect(self) -> list[Sample]:
        """Return the merged samples of all sources. A source that fails is left out and counted."""
        totals: dict[Series, float] = {}
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            source = entry.source
            if source is not None:
                for sample in self._read(entry, source):
                    add_to(totals, METRIC_OF_SAMPLE[sample.name].merge, sample)
        with self._lock:
            for entry in [entry for entry in self._entries if entry.source is None]:
                self._retire(entry)
            for sample in samples_of(self._retired):
                add_to(totals, METRIC_OF_SAMPLE[sample.name].merge, sample)
        return [*samples_of(totals), Sample("fabrictime_metrics_errors_total", self.errors)]

    def _read(self, entry: _Entry, source: Source) -> list[Sample]:
        try:
            metrics = [(METRIC_OF_SAMPLE[sample.name], sample) for sample in _read_twice(source)]
        except Exception as error:  # noqa: BLE001 - one source must not hide the others
            self.errors += 1
            if line := self._repeats.due(f"metrics: {type(error).__name__}: {error}"):
                log.warning("%s", line)
            return list(samples_of(entry.last))
        listed = {Detail.ALWAYS, *self.details}
        metrics = [(metric, sample) for metric, sample in metrics if metric.detail in listed]
        entry.last = {(s.name, s.labels): s.value for metric, s in metrics if metric.is_cumulative}
        return [sample for _, sample in metrics]

    def _retire(self, entry: _Entry) -> None:
        """Add the counters of a source that ends to the totals."""
        if entry not in self._entries:
            return
        self._entries.remove(entry)
        for sample in samples_of(entry.last):
            add_to(self._retired, METRIC_OF_SAMPLE[sample.name].merge, sample)


def _read_twice(source: Source) -> list[Sample]:
    """Read a source's samples; read again if a container of the source changed during the first read."""
    try:
        return list(source())
    except RuntimeError:
        return list(source())


def process_samples() -> Iterator[Sample]:
    """Yield the processor time and the resident memory of this process."""
    times = os.times()
    yield Sample("fabrictime_cpu_seconds_total", times.user + times.system)
    resident_pages = int(_STATM.read_text(encoding="ascii").split()[1])
    yield Sample("fabrictime_resident_memory_bytes", resident_pages * _PAGE_BYTES)


SOURCES: Final = Sources()
"""The sources of this process."""
SOURCES.add(process_samples)
