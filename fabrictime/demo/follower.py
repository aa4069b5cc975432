"""Follows the log in a thread for the tour: events to report, live flows, link health.

It starts at the present, except for compacted topics, so a log of several days costs no more.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Final, Self

from fabrictime.demo.story import Event
from fabrictime.state.flow_cache import FlowCache, ReportedFlow
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, END, LogUnavailable, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.records import ContentionState, LinkHealth, LinkState
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CONTENTION,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    LINK_HEALTH,
    POLICY_CYCLES,
    QUEUES,
    Topic,
)
from streams.runtime.flow_routes import FlowRouteTable

RAW: Final = frozenset({FLOWS.name, FLOW_ROUTES.name, QUEUES.name})
"""Topics with frequent records, which are only partly decoded."""
_FLOWS_BACK_S: Final = 3.0
"""How far back the reports of flows are read; every host reports all of its flows each second."""


class Follower:
    """Follows the log until its `with` block ends. Raises LogUnavailable at the start."""

    def __init__(self, cluster: KafkaSettings, registry: codec.Registry | None = None) -> None:
        starts: dict[Topic, Start] = {
            LINK_HEALTH: BEGINNING,
            FLOW_ROUTES: BEGINNING,
            FLOWS: back(_FLOWS_BACK_S),
            **dict.fromkeys((ALERTS, CONTENTION, DECISIONS, ACTIONS, POLICY_CYCLES, QUEUES), END),
        }
        self.movable = 0
        """Number of flows that have other known paths, according to the policy."""
        self.failure: str | None = None
        self._queues_to_ns = 0
        self._registry = registry
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._flows = FlowCache(lambda value: codec.decode(value, FLOWS.type, registry))
        self._routes = FlowRouteTable()
        self._health: dict[str, LinkHealth] = {}
        self._queues: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._reader = TopicReader.open(cluster, starts, fetch_wait_ms=20)
        self._thread = threading.Thread(target=self._follow, name="demo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._reader.close()

    def flows(self) -> dict[str, ReportedFlow]:
        """Return the open flows by id, in their last reported state."""
        with self._lock:
            return dict(self._flows.flows())

    def links_of(self, flow_id: str, port: int | None = None) -> tuple[str, ...]:
        """Return the links of a flow's data and acknowledgements, for its present source port or for `port`.

        The result is empty for an unknown flow. If no trace is complete, only the data's links are returned.
        """
        with self._lock:
            flow = self._flows.flows().get(flow_id)
            if flow is None:
                return ()
            routes = self._routes.of(flow["nic"], flow["peer"], flow["peer_port"])
            route = routes.get(flow["source_port"] if port is None else port)
            return tuple(flow["links"]) if route is None else route.all_links

    def states(self) -> dict[str, LinkState]:
        """Return the health of every cable, NIC and host that has been evaluated."""
        with self._lock:
            return {subject: record["state"] for subject, record in self._health.items()}

    def queues(self) -> set[str]:
        """Return the links that have had a queue at any time during the tour."""
        with self._lock:
            return set(self._queues)

    def queues_behind_s(self) -> float | None:
        """Return the age of the newest evidence about queues, s; None without evidence.

        The evidence is at most a second old, unless the machine is too busy.
        """
        with self._lock:
            newest_ns = self._queues_to_ns
        return (time.time_ns() - newest_ns) / 1e9 if newest_ns else None

    def drain(self) -> list[Event]:
        """Return the events since the last call, in the order in which they were read."""
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                messages = self._reader.poll(0.05)
            except LogUnavailable as error:
                self.failure = str(error)
                return
            with self._lock:
                others = [message for message in messages if not self._take_raw(message)]
            for message, record in self._reader.decoded(others, self._registry):
                if record is not None:
                    self._take(Event(message.topic, record, message.append_ns))

    def _take_raw(self, message: Message) -> bool:
        """Process a message if its topic is one of `RAW`; return whether the topic is."""
        if message.topic == FLOWS.name and message.value is not None:
            self._flows.take(message.key, message.value, message.append_ns)
        with contextlib.suppress(codec.BadRecord):  # a record that cannot be read is not known
            if message.topic == FLOW_ROUTES.name:
                self._routes.take(message.key_bytes, message.value, self._registry)
            elif message.topic == QUEUES.name and message.value is not None:
                head = codec.decode_head(message.value, QUEUES.record, "slots", self._registry)
                end_ns = head["window_start_ns"] + head["slot_ns"] * head["slots"]
                self._queues_to_ns = max(self._queues_to_ns, end_ns)
        return message.topic in RAW

    def _take(self, event: Event) -> None:
        if event.topic == POLICY_CYCLES.name:
            self.movable = event.record["movable"]
            return
        with self._lock:
            if event.topic == LINK_HEALTH.name:
                self._health[event.record["subject"]] = event.record
            elif event.topic == CONTENTION.name:
                is_over = event.record["state"] == ContentionState.CLOSED
                (self._queues.discard if is_over else self._queues.add)(event.record["link"])
        self._events.put(event)
