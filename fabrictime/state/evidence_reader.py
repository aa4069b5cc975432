"""Reads from the log whether evidence about health is fresh, for commands, `up` and the web page.

`EvidenceReader` reads all positions once per call. `EvidenceWatch` reads repeatedly in a thread until it is
stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fabrictime.state.evidence import CHECKING, FRESH_S, EvidenceAges, Source, Verdict
from fabrictime.state.simulated_time_reader import SimulatedTimeReader
from schemas import codec
from schemas.kafka.message import Place
from schemas.kafka.offset_reader import OffsetReader
from schemas.kafka.reader import LogUnavailable
from schemas.kafka.settings import KafkaSettings
from schemas.log_time import is_log_time_wrong
from schemas.topics import CLOCK_OFFSETS, LINKS, Topic

PERIOD_S: Final = 1.0
"""Time between two readings, s."""
QUICK_PERIOD_S: Final = 0.2
"""Time between two readings before the first verdict, for which a command may be waiting, s."""
PERIODS: Final = 5
"""Number of a source's periods without an advance after which its evidence is missing."""


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """The log, the consumer group of the links service, and the age above which evidence is missing."""

    kafka: KafkaSettings
    links_group: str = "fabrictime-links"
    fresh_s: float = FRESH_S
    shards: tuple[str, ...] = ()
    """Shards whose positions alone are read, and no record: the reading of an agent does not grow with the
    fleet. Empty: all positions are read, and the newest clock records, which show that log time is wrong."""


def fresh_s_of(window_ms: int, commit_interval_ms: int) -> float:
    """Return the age above which evidence counts as missing, s, from the periods of windows and commits."""
    return max(FRESH_S, PERIODS * max(window_ms, commit_interval_ms) / 1e3)


class EvidenceReader:
    """Reads the positions of all sources from the log, and returns a verdict about the evidence."""

    def __init__(self, settings: EvidenceSettings) -> None:
        """Create the Kafka client without connecting."""
        self.ages = EvidenceAges(settings.fresh_s)
        self._kafka = settings.kafka
        self._registry = settings.kafka.registry()
        self._reads_records = not settings.shards
        clock_keys = tuple(f"{shard}/0" for shard in settings.shards)
        keys: dict[Topic, tuple[str, ...]] = {LINKS: settings.shards, CLOCK_OFFSETS: clock_keys}
        self._reader = OffsetReader(settings.kafka, (LINKS, CLOCK_OFFSETS), settings.links_group, keys)
        self._clocks_end: dict[Place, int] = {}
        self._fleet: SimulatedTimeReader | None = None
        """Reads the inventory while log time looks wrong; None otherwise."""

    def close(self) -> None:
        """Close the connections to the log."""
        self._reader.close()
        self._close_fleet()

    def read(self) -> None:
        """Read all positions. If the log does not answer, the verdict contains this failure."""
        try:
            ends = self._reader.ends()
            committed = self._reader.committed(LINKS)
            self._take(ends, committed)
        except LogUnavailable as error:
            self.ages.fail(str(error), time.monotonic())
        else:
            self.ages.succeed()

    def verdict(self) -> Verdict:
        """Return the verdict at the present time from the last `read`."""
        return self.ages.verdict(time.monotonic())

    def _take(self, ends: Mapping[Place, int], committed: Mapping[Place, int]) -> None:
        now_s = time.monotonic()
        links = {place: end for place, end in ends.items() if place[0] == LINKS.name}
        clocks = {place: end for place, end in ends.items() if place[0] == CLOCK_OFFSETS.name}
        unread = {place: at for place, end in links.items() if (at := committed.get(place, 0)) < end}
        is_first = self.ages.take(Source.PROBES, sum(links.values()), now_s)
        self.ages.take(Source.CLOCKS, sum(clocks.values()), now_s)
        self.ages.take(Source.LINKS, sum(committed.values()), now_s, is_done=not unread)
        if not self._reads_records:
            return
        if is_first:
            self._set_ages_at_start(links, clocks, unread)
        elif clocks != self._clocks_end:
            changed = {place: end for place, end in clocks.items() if end != self._clocks_end.get(place)}
            self._take_log_time(self._reader.messages_at(_last(changed)))
        self._clocks_end = clocks

    def _set_ages_at_start(
        self, links: Mapping[Place, int], clocks: Mapping[Place, int], unread: Mapping[Place, int]
    ) -> None:
        """Set the age of each source's newest record at the start of reading."""
        newest_messages = self._reader.messages_at(_last({**links, **clocks}))
        of_links = [message for place, message in newest_messages.items() if place[0] == LINKS.name]
        of_clocks = [message for place, message in newest_messages.items() if place[0] == CLOCK_OFFSETS.name]
        waiting = self._reader.messages_at(unread) if unread else {}
        self._set_age_at_start(Source.PROBES, of_links)
        self._set_age_at_start(Source.CLOCKS, of_clocks)
        self._set_age_at_start(Source.LINKS, waiting.values())
        self._take_log_time({message.partition(): message for message in of_clocks})

    def _set_age_at_start(self, source: Source, messages: Iterable[Any]) -> None:
        newest_ms = max((message.timestamp()[1] for message in messages), default=None)
        if newest_ms is not None:
            self.ages.set_age_at_start(source, time.time() - newest_ms / 1e3)

    def _take_log_time(self, messages: Mapping[Any, Any]) -> None:
        """Compute log time minus the hosts' clocks from the newest clock records."""
        newest: tuple[int, int] | None = None
        for message in messages.values():
            try:
                head = codec.decode_head(
                    message.value() or b"", CLOCK_OFFSETS.record, "log_offset_ns", self._registry
                )
            except codec.BadRecord:
                continue
            window_offset = (head["window"], head["log_offset_ns"])
            newest = window_offset if newest is None else max(newest, window_offset)
        if newest is not None:
            ahead_s = -newest[1] / 1e9
            if not is_log_time_wrong(ahead_s):
                self._close_fleet()
            elif self._is_simulated():
                ahead_s = 0.0
            self.ages.log_ahead_s = ahead_s

    def _is_simulated(self) -> bool:
        """Return whether all hosts are simulated: simulated clocks cannot show that log time is wrong."""
        if self._fleet is None:
            self._fleet = SimulatedTimeReader(self._kafka, self._registry)
        return self._fleet.read().is_simulated

    def _close_fleet(self) -> None:
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None


def _last(ends: Mapping[Place, int]) -> dict[Place, int]:
    """Return the offset of the last message of each partition that has a message."""
    return {place: end - 1 for place, end in ends.items() if end > 0}


class EvidenceWatch:
    """Reads the evidence repeatedly in a thread of its own, and returns the verdict about it."""

    def __init__(self, settings: EvidenceSettings, changed: Callable[[], None] = lambda: None) -> None:
        """Watch with these settings. `changed` is called in the thread whenever the verdict changes."""
        self._settings, self._changed = settings, changed
        self._reader: EvidenceReader | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread that reads the evidence."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that reads the evidence."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def verdict(self) -> Verdict:
        """Return the verdict at the present time. Thread-safe."""
        reader = self._reader
        return CHECKING if reader is None else reader.verdict()

    def await_verdict(self) -> Verdict:
        """Wait until the evidence is checked, and return the verdict."""
        while not (verdict := self.verdict()).is_checked and self._thread.is_alive():
            self._ending.wait(0.05)
        return verdict

    def _run(self) -> None:
        reader = EvidenceReader(self._settings)
        before = CHECKING
        try:
            while not self._ending.is_set():
                reader.read()
                self._reader = reader
                verdict = reader.verdict()
                if (verdict.is_checked, verdict.is_fresh) != (before.is_checked, before.is_fresh):
                    before = verdict
                    self._changed()
                self._ending.wait(PERIOD_S if verdict.is_checked else QUICK_PERIOD_S)
        finally:
            reader.close()
