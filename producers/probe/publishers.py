"""Publishes a prober's measurements, either as raw samples or reduced to fits and delays per window."""

from __future__ import annotations

import time
from typing import Protocol

from native.core import encode_probe_batch
from native.core.columns import ProbeColumns
from producers.inventory.nics import LookupReader
from producers.probe.base import ProbePublisher
from producers.probe.reduced import ClockView, Reducer
from producers.probe.udp import UdpTransport
from schemas import codec
from schemas.kafka.bounded_producer import Delivered
from schemas.records import ClockFits, ClockOffsets, PathDelays
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, DELAYS

NS_PER_MS = 1_000_000


class MeasurementPublisher(Protocol):
    """Publishes the measurements of one prober."""

    def flush(self) -> ProbeColumns | None:
        """Publish the measurements since the last call; return them as columns, None if there are none."""

    def append_time_callback(self) -> Delivered | None:
        """Return a callback that receives an announcement's append time; None if no append time is needed."""

    def finish(self) -> None:
        """Publish the measurements of the window that is still open."""

    def close(self) -> None:
        """Close the publisher's Kafka readers, if it has any."""


class RawPublisher:
    """Publishes the samples of one prober unchanged."""

    def __init__(self, transport: UdpTransport, publisher: ProbePublisher) -> None:
        self._transport, self._publisher = transport, publisher

    def flush(self) -> ProbeColumns | None:
        """Publish the samples since the last call; return them, or None if there are none."""
        batch = self._transport.engine.drain()
        self._publisher.publish_batch(self._transport.name, encode_probe_batch(batch))
        return batch

    def append_time_callback(self) -> Delivered | None:
        """Return None: raw samples need no log time."""
        return None

    def finish(self) -> None:
        """Do nothing: raw samples have no window."""

    def close(self) -> None:
        """Do nothing: raw publishing needs no Kafka reader."""


class ReducedPublisher:
    """Publishes clock fits and path delays per window, with the inventory and clock models that it reads."""

    def __init__(self, transport: UdpTransport, publisher: ProbePublisher) -> None:
        self._transport, self._publisher = transport, publisher
        window_ns = transport.settings.window_ms * NS_PER_MS
        view = ClockView(window_ns=window_ns)
        shard = transport.nic.shard

        def on_offsets(key: str, record: ClockOffsets | None, append_ms: int) -> None:
            if record is not None and record["shard"] == shard:
                view.update(record, append_ms * NS_PER_MS)

        self._offsets = LookupReader(
            publisher.kafka, {CLOCK_OFFSETS: on_offsets}, publisher.registry, from_end=(CLOCK_OFFSETS,)
        )
        clock = transport.record()["clock"]
        self._reducer = Reducer(transport.name, shard, clock, window_ns, view)
        self._log_offset_ns: int | None = None
        """Offset of the log's clock from the system clock; None until the log has acknowledged a message."""

    def flush(self) -> ProbeColumns | None:
        """Add the samples since the last call to the open window and return them.

        If the window has ended, publish it. Windows are cut by the log's clock. Until that clock's offset
        is known, samples wait in the engine.
        """
        self._offsets.poll()
        if self._log_offset_ns is None:
            return None
        batch = self._transport.engine.drain()
        self._publish(*self._reducer.add(batch, time.time_ns() + self._log_offset_ns, self._clocks()))
        return batch

    def append_time_callback(self) -> Delivered | None:
        """Return a callback that derives the offset of the log's clock from a message's append time."""
        sent_ns = time.time_ns()

        def set_offset(append_ns: int) -> None:
            self._log_offset_ns = append_ns - (sent_ns + time.time_ns()) // 2

        return set_offset

    def finish(self) -> None:
        """Publish the measurements of the window that is still open."""
        self._publish(*self._reducer.close(self._clocks()))

    def close(self) -> None:
        """Close the reader of inventory and clock models."""
        self._offsets.close()

    def _clocks(self) -> dict[str, str]:
        alive = self._publisher.peers.alive(self._transport.nic.shard)
        return {name: record["clock"] for name, record in alive.items()}

    def _publish(self, fits: list[ClockFits], delays: list[PathDelays]) -> None:
        producer, registry = self._publisher.producer, self._publisher.registry
        for fit in fits:
            producer.put(CLOCK_FITS.name, fit["shard"], codec.encode(CLOCK_FITS.type, fit, registry))
        for delay in delays:
            producer.put(DELAYS.name, delay["nic"], codec.encode(DELAYS.type, delay, registry))
