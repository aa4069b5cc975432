"""Reads the whole state of the fleet from the log, and returns its overview, for commands."""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple, Self

from fabrictime.state.evidence_reader import EvidenceSettings, EvidenceWatch
from fabrictime.state.fabric_consumer import FabricConsumer
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.health import Health, Overview, overview, unknown
from schemas import codec
from schemas.input_error import InputError
from schemas.topics import FLOWS

CATCH_UP_S: Final = 60.0
"""Longest time in which the log's topics are read to their end, s."""


class View(NamedTuple):
    """An overview, and its fabric time, ns."""

    overview: Overview
    now_ns: int


class OverviewReader:
    """Follows the log and holds the state of the fleet, as a context manager."""

    def __init__(self, settings: EvidenceSettings) -> None:
        """Create the readers without connecting."""
        registry = settings.kafka.registry()
        self.state = FabricState(lambda value: codec.decode(value, FLOWS.type, registry))
        self._changed = threading.Event()
        self._evidence = EvidenceWatch(settings, self._changed.set)
        self._consumer = FabricConsumer(
            settings.kafka, self.state, lambda parts: self._changed.set(), registry
        )

    def __enter__(self) -> Self:
        self._consumer.start()
        self._evidence.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.stop()
        self._evidence.stop()

    def catch_up(self, limit_s: float = CATCH_UP_S) -> None:
        """Wait until all topics are read to their end and the evidence is checked.

        Raises ValueError after `limit_s`, or if the log does not answer.
        """
        deadline_s = time.monotonic() + limit_s
        while not (self._consumer.status.caught_up and self._evidence.verdict().is_checked):
            verdict = self._evidence.verdict()
            if verdict.log_fault is not None:
                raise InputError(verdict.log_fault)
            if time.monotonic() > deadline_s:
                status = self._consumer.status
                missing = f"topics {', '.join(status.missing)} are missing" if status.missing else ""
                reason = status.error or missing or "it is still being read"
                raise InputError(f"the log: {reason}, expected its end within {limit_s:g} s")
            self._changed.wait(0.1)
            self._changed.clear()

    def view(self) -> View:
        """Return the overview of the present moment."""
        log_now_ns = time.time_ns()
        verdict = self._evidence.verdict()
        with self.state.lock:
            now_ns = log_now_ns - self.state.simulated.lag_ns(log_now_ns)
            log_age_s = self.state.age_s(log_now_ns)
            return View(overview(self.state, verdict, now_ns, log_age_s=log_age_s), now_ns)


def read_health(settings: EvidenceSettings, limit_s: float = CATCH_UP_S) -> Health:
    """Return the health that the page's tab Now shows, read once from the log; unknown if this fails."""
    with OverviewReader(settings) as reader:
        try:
            reader.catch_up(limit_s)
        except ValueError as error:
            return unknown(str(error))
        return reader.view().overview.health
