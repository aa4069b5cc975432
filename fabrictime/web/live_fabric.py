"""Between the feed's thread and the tabs: tells tabs what changed, and makes what they all draw only once.

In: a `FabricState` and word of its changes from any thread. Out: calls of subscribers in the event loop, at
most every `PERIOD_S`, verdicts at once after a pause; `shown`, the plan that is drawn, and its frames.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.web.fabric_consumer import ConsumerStatus
from fabrictime.web.tabs.fabric import frames
from fabrictime.web.tabs.fabric.frames import Drawn, Summary

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.1
VERDICTS: Final[frozenset[Part]] = frozenset({"health", "contention", "alerts"})
"""What people wait for: told at once where no verdict was told for `PERIOD_S`. Queues and paths change many
times a second and would keep tabs busy for what nobody can read."""
PLAN_SHARE: Final = 20
"""A plan is made anew only after this many times what the last one took: while a fleet of thousands
announces itself, each NIC changes it."""

ALL: Final[frozenset[Part]] = frozenset(get_args(Part))
Told = Callable[[frozenset[Part]], None]


class LiveFabric:
    """The fabric's state and those who watch it. Runs in one event loop but for `changed`."""

    def __init__(
        self, state: FabricState, status: Callable[[], ConsumerStatus], now: Callable[[], int]
    ) -> None:
        self.state = state
        self.now_ns = now
        self.plan_number = 0
        self.shown: Drawn = frames.drawn(state.plan())
        self._status = status
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: list[Told] = []
        self._parts: set[Part] = set()
        self._tick_at: asyncio.TimerHandle | None = None
        self._told_s = self._verdicts_s = float("-inf")
        self._next_plan_s = 0.0
        self._look: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._glance: tuple[tuple[Any, ...], Summary] | None = None

    @property
    def status(self) -> ConsumerStatus:
        """How the feed is."""
        return self._status()

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the event loop in which subscribers are called."""
        self._loop = loop

    def changed(self, parts: frozenset[Part]) -> None:
        """Say what changed. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, parts)

    def subscribe(self, told: Told) -> Callable[[], None]:
        """Call `told` with all parts now and with what changed from now on; return how to end it."""
        self._refresh_plan()
        self._told.append(told)
        _tell(told, ALL)
        return lambda: self._told.remove(told) if told in self._told else None

    def look(self) -> dict[str, Any]:
        """Return how the links of the plan look now; one dict for all tabs."""
        versions = self.state.versions
        key = (self.plan_number, versions["health"], versions["queues"])
        if self._look is None or self._look[0] != key:
            with self.state.lock:
                self._look = (key, frames.look_frame(self.state, self.shown, self.plan_number))
        return self._look[1]

    def summary(self) -> Summary:
        """Return the header's figures; made once for all tabs."""
        versions = self.state.versions
        key = (self.plan_number, *(versions[part] for part in ("health", "queues", "contention", "alerts")))
        if self._glance is None or self._glance[0] != key:
            with self.state.lock:
                self._glance = (key, frames.summary(self.state, self.now_ns()))
        return self._glance[1]

    def _note(self, parts: Iterable[Part]) -> None:
        self._parts.update(parts)
        loop = self._loop
        if loop is None:
            return
        due_s = max(loop.time(), (self._verdicts_s if self._parts & VERDICTS else self._told_s) + PERIOD_S)
        if self._tick_at is not None:
            if self._tick_at.when() <= due_s:
                return
            self._tick_at.cancel()
        self._tick_at = loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._tick_at = None
        parts, self._parts = frozenset(self._parts), set()
        if self._loop is not None:
            self._told_s = self._loop.time()
            self._verdicts_s = self._told_s if parts & VERDICTS else self._verdicts_s
        if not self._told:
            return
        late = self._refresh_plan()
        for told in tuple(self._told):
            _tell(told, parts)
        if late:
            self._note(("plan",))

    def _refresh_plan(self) -> bool:
        """Make the plan anew where it changed; whether that is still to come."""
        begin_s = time.monotonic()
        early = begin_s < self._next_plan_s
        with self.state.lock:
            plan = self.state.plan_if_known() if early else self.state.plan()
        if plan is None:
            return True
        if plan is not self.shown.plan:
            self.shown = frames.drawn(plan)
            self.plan_number += 1
            took_s = time.monotonic() - begin_s
            self._next_plan_s = begin_s + PLAN_SHARE * took_s
        return False


def _tell(told: Told, parts: frozenset[Part]) -> None:
    try:
        told(parts)
    except Exception:
        log.exception("a tab could not take what changed")
