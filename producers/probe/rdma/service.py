"""Runs the RDMA prober service: one RDMA device's prober process, whose measurements it publishes.

Verbs are used in a separate process (`verbs_worker.py`), because pyverbs holds the interpreter lock in every
call. Batches are always published raw.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from native.core import encode_probe_batch
from producers.inventory.nics import LookupReader, PeerTable
from producers.probe.base import STATUS_S, ProbeMetrics, ProbePublisher, select_peers
from producers.probe.keys import read_key
from producers.probe.rdma.devices import SYSFS, rdma_device_of, rdma_unavailable
from producers.probe.rdma.records import columns_of, nic_record, peers_of
from producers.probe.rdma.settings import RdmaProbeSettings
from producers.probe.rdma.worker_process import Message, Ready, UdPeerLine, WorkerProcess, open_request
from producers.settings import FLUSH_MS, NicSettings
from schemas.ids import nic_id
from schemas.records import Nic
from schemas.secret_file import SecretFileError
from schemas.stop_request import StopRequest
from schemas.topics import INVENTORY

_log = logging.getLogger(__name__)

OPEN_S: Final = 30.0
"""Timeout for importing pyverbs and opening the device."""
RETRY_S: Final = 10.0
"""Interval of the attempts to open an unavailable device."""
UPDATE_PEERS_S: Final = 1.0
POLL_S: Final = 0.1


class UdTransport:
    """Sends and answers probes over UD queue pairs of one device, in a worker process."""

    def __init__(
        self, settings: RdmaProbeSettings, nic: NicSettings, device: str, key: bytes, sysfs: Path
    ) -> None:
        """Start the worker and wait until it has opened the device. Raises OSError or ValueError."""
        self.nic = nic.model_copy(update={"device": device})
        self.name = nic_id(nic.host, device)
        self.run = int.from_bytes(os.urandom(8), "big") >> 1
        self.since_ns = time.time_ns()
        self.stamp_error_ns = 0
        self._counters: dict[str, int] = {}
        self._early: list[Message] = []
        request = open_request(
            nic=self.name,
            device=device,
            run=self.run,
            key=key,
            address=nic.address,
            port=settings.port,
            paths=settings.paths,
            first_path_port=settings.first_path_port,
            rate_pps=settings.rate_pps,
            answer_max_pps=settings.answer_max_pps,
            timeout_ms=settings.timeout_ms,
            max_age_s=settings.max_age_s,
            flush_ms=settings.flush_ms or FLUSH_MS,
            hardware=settings.hardware_stamps,
            traffic_class=settings.traffic_class,
            sysfs=sysfs,
        )
        self.worker = WorkerProcess(request, settings.verbs_python)
        try:
            self.ready = self._wait_until_open()
        except BaseException:
            self.worker.close()
            raise
        self._peers: dict[str, UdPeerLine] = {}
        self._settings = settings

    def record(self) -> Nic:
        """Return the NIC's announcement for the inventory, with the present timestamp error."""
        return nic_record(
            self.nic,
            self.ready,
            run=self.run,
            since_ns=self.since_ns,
            announced_ns=time.time_ns(),
            stamp_error_ns=self.stamp_error_ns,
        )

    def update_peers(self, table: PeerTable, extra: frozenset[str] = frozenset()) -> int:
        """Choose peers among the living NICs on the same kind of network; return the number of peers."""
        contacts = peers_of(table.alive_ud(self.nic.shard).values(), self.ready["kind"])
        settings = self._settings
        peers = select_peers(self.name, contacts, settings.peers, settings.peers_seed, extra)
        if peers != self._peers:
            self._peers = peers
            self.worker.set_peers(list(peers.values()))
        return len(peers)

    def counters(self) -> Mapping[str, float]:
        """Return, by name, the packet and sample counters in the worker's newest batch."""
        return self._counters

    def read(self) -> list[bytes]:
        """Return the encoded `ProbeBatch`es that the worker has sent since the last call."""
        early, self._early = self._early, []
        return self._batches(early + self.worker.read())

    def close(self) -> list[bytes]:
        """End the worker process; return the `ProbeBatch`es that `read` has not returned."""
        return self._batches(self._early + self.worker.close())

    def _batches(self, messages: list[Message]) -> list[bytes]:
        batches = []
        for message in messages:
            batch = message.get("batch")
            if batch is not None:
                self._counters, self.stamp_error_ns = batch["counters"], batch["stamp_error_ns"]
                batches.append(
                    encode_probe_batch(columns_of(self.name, self.run, batch, self._settings.dscp))
                )
        return batches

    def _wait_until_open(self) -> Ready:
        end_s = time.monotonic() + OPEN_S
        while time.monotonic() < end_s:
            messages = self.worker.read()
            if messages and "ready" in messages[0]:
                self._early = messages[1:]
                return messages[0]["ready"]
            if self.worker.ended is not None:
                raise ValueError(self.worker.ended)
            select.select([self.worker], [], [], POLL_S)
        raise ValueError(f"not open within {OPEN_S:.0f} s")


class RdmaProbeService:
    """Probes while the RDMA device is available, and searches for the device otherwise."""

    def __init__(self, settings: RdmaProbeSettings, nic: NicSettings, device: str, sysfs: Path) -> None:
        """Read the probe key and open the publisher. Raises SecretFileError if the key is unusable."""
        self._settings, self._nic, self._device, self._sysfs = settings, nic, device, sysfs
        self._key = read_key(settings.key_file)
        self._publisher = ProbePublisher(settings)
        handlers = {INVENTORY: self._publisher.peers.update}
        self._reader = LookupReader(self._publisher.kafka, handlers, self._publisher.registry)
        self._last_warning = ""

    def run(self, stop: StopRequest) -> None:
        """Probe until a stop is requested; while the device is unavailable, try again periodically."""
        self._publisher.supervisor.notify("READY=1")  # a device that is down now may come up later
        retry_at_s = 0.0
        while not stop.is_set():
            if time.monotonic() < retry_at_s:
                stop.wait(POLL_S)
                self._publisher.producer.poll()
                continue
            retry_at_s = time.monotonic() + RETRY_S
            try:
                transport = UdTransport(self._settings, self._nic, self._device, self._key, self._sysfs)
            except (OSError, ValueError) as error:
                self._warn(str(error))
                continue
            self._log_opened(transport)
            reason = self._probe(transport, stop)
            if reason is not None:
                self._warn(reason)

    def close(self) -> None:
        """Send the waiting messages and close the reader of the inventory."""
        self._publisher.supervisor.notify("STOPPING=1")
        self._publisher.close(self._device)
        self._reader.close()

    def _probe(self, transport: UdTransport, stop: StopRequest) -> str | None:
        """Probe with one worker until a stop is requested; return the reason if the worker ended earlier."""
        announce_at_s = peers_at_s = status_at_s = 0.0
        peers = 0
        publisher = self._publisher
        metrics = ProbeMetrics(transport, lambda: peers)
        while not stop.is_set() and transport.worker.ended is None:
            select.select([transport.worker.fileno(), stop.fd], [], [], POLL_S)
            self._publish(transport.name, transport.read())
            now_s = time.monotonic()
            if now_s >= announce_at_s:
                publisher.announce(transport.record())
                announce_at_s = now_s + self._settings.announce_s
            if self._reader.poll() or now_s >= peers_at_s:
                peers, peers_at_s = transport.update_peers(publisher.peers), now_s + UPDATE_PEERS_S
            publisher.producer.poll()
            if now_s >= status_at_s:
                status_at_s = now_s + STATUS_S
                publisher.report_status(transport, peers)
        reason = transport.worker.ended
        metrics.close()
        self._publish(transport.name, transport.close())
        # peers stop at once, instead of losing probes until the silence shows
        publisher.announce({**transport.record(), "probe_port": 0, "ud": None})
        return reason

    def _publish(self, name: str, batches: list[bytes]) -> None:
        for batch in batches:
            self._publisher.publish_batch(name, batch)

    def _warn(self, reason: str) -> None:
        """Log the reason why no probes are sent, but only if it is new."""
        if reason != self._last_warning:
            self._last_warning = reason
            _log.warning("%s/%s: %s; tried again every %.0f s", self._nic.host, self._device, reason, RETRY_S)

    def _log_opened(self, transport: UdTransport) -> None:
        self._last_warning, ready = "", transport.ready
        _log.info(
            "%s: answers on %d queue pairs, %s, timestamps of %s%s, run %d",
            transport.name,
            len(ready["numbers"]),
            ready["kind"],
            "the NIC" if ready["hardware"] else "user space",
            "".join(f" ({reason})" for reason in ready["refused"]),
            transport.run,
        )
        if not ready["sure"]:
            _log.warning(
                "%s: unknown how its driver spreads paths: they may all take one route", transport.name
            )


def main(settings: RdmaProbeSettings, nic: NicSettings, sysfs: Path = SYSFS) -> int:
    """Probe until SIGTERM or SIGINT. Return 0, also if no device can be probed; 2 if it cannot start."""
    stop = StopRequest()
    stop.set_on_signals()
    reason, device = rdma_unavailable(settings, nic, sysfs), rdma_device_of(nic, sysfs)
    if reason is not None or device is None:
        _log.info("%s", reason)
        return 0
    try:
        service = RdmaProbeService(settings, nic, device, sysfs)
    except SecretFileError as error:
        _log.error("%s/%s: %s", nic.host, device, error)
        return 2
    try:
        service.run(stop)
    finally:
        service.close()
    return 0
