"""The state of the fabric at past moments, with the interface of the live state.

A moment is fabric time, which is the log's time unless a simulated fleet runs behind it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fabrictime.state.evidence import FRESH_S, Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.past_log import BACK_S, PastLog, PastState
from schemas import codec
from schemas.kafka.reader import LogUnavailable
from schemas.topics import FLOWS, INVENTORY, QUEUES
from schemas.units import seconds_text

if TYPE_CHECKING:
    from schemas.kafka.settings import KafkaSettings

T = TypeVar("T")

MOMENTS_KEPT: Final = 6
"""Number of past moments in memory; several readers of a moment share one."""
READING: Final = ConsumerStatus()


@dataclass(frozen=True, slots=True)
class Moment:
    """A past moment, ns, and the fabric's state at this moment."""

    at_ns: int
    fabric: LiveFabric


class PastFabric:
    """Reads the fabric's state at past moments from the log. Thread-safe."""

    def __init__(self, live: LiveFabric, cluster: KafkaSettings, registry: codec.Registry | None) -> None:
        self._live, self._registry = live, registry
        self._log = PastLog(cluster, registry)
        self._lock = threading.Lock()
        self._moments: OrderedDict[int, Moment] = OrderedDict()

    def pending(self, at_ns: int) -> Moment:
        """Return a moment without a state, which tabs show while `at` reads the state."""
        return self._moment(at_ns, PastState(self._empty(), None, 0), READING, Verdict(is_checked=False))

    def at(self, at_ns: int) -> Moment:
        """Return the state at a moment, read from the log. If the log does not answer, `fabric.status.error`
        is set.

        A read takes up to a second.
        """
        with self._lock:
            moment = self._moments.get(at_ns)
            if moment is None:
                moment = self._moments[at_ns] = self._read(at_ns)
            self._moments.move_to_end(at_ns)
            while len(self._moments) > MOMENTS_KEPT:
                self._moments.popitem(last=False)
            if moment.fabric.status.error is not None:
                del self._moments[at_ns]
            return moment

    def _read(self, at_ns: int) -> Moment:
        try:
            past = self._log.at(at_ns, self._empty)
        except LogUnavailable as error:
            return self._moment(
                at_ns, PastState(self._empty(), None, 0), ConsumerStatus(error=str(error)), Verdict()
            )
        status = ConsumerStatus(caught_up=True, unreadable=past.unreadable)
        return self._moment(at_ns, past, status, evidence_at(at_ns, past.newest_ns))

    def _empty(self) -> FabricState:
        return FabricState(
            lambda value: codec.decode(value, FLOWS.type, self._registry), routes_of=self._live.state
        )

    def _moment(self, at_ns: int, past: PastState, status: ConsumerStatus, verdict: Verdict) -> Moment:
        past.state.lock = self._live.state.lock  # it guards the routes that both use
        fabric = LiveFabric(past.state, _always(status), _always(at_ns), _always(verdict))
        fabric.is_past = True
        return Moment(at_ns, fabric)


def evidence_at(at_ns: int, newest_ns: int | None) -> Verdict:
    """Return whether the log had fresh records at a moment. `newest_ns` is the time of its newest record."""
    if newest_ns is None:
        back = seconds_text(BACK_S[INVENTORY])
        return Verdict((f"the log has no record of the {back} before this moment (nothing ran?)",))
    age_s = (at_ns - newest_ns) / 1e9
    if age_s > FRESH_S:
        queues, age = seconds_text(BACK_S[QUEUES]), seconds_text(age_s)
        return Verdict((f"no queues in the {queues} before this moment; the newest record is {age} old",))
    return Verdict()


def _always(value: T) -> Callable[[], T]:
    """Return a function that returns `value`."""
    return lambda: value
