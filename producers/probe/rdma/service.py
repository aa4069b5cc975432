"""The RDMA prober service: one RDMA device's process, its batches to the log, its peers from the inventory.

In: `RdmaProbeSettings`, `NicSettings`. Out: `Nic` announcements and `ProbeBatch`es, always raw. Verbs are
another process's (`edge`): pyverbs holds the interpreter in every call.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sdnotify import SystemdNotifier

from native.core import encode_probe_batch
from producers.bounded_producer import BoundedProducer, kafka_client
from producers.inventory.nics import LookupReader, PeerTable
from producers.probe.keys import KeyFileError, read_key
from producers.probe.peers import choose_peers, hashes_of
from producers.probe.rdma.gids import netdevs_of
from producers.probe.rdma.records import columns_of, nic_record, peers_of
from producers.probe.rdma.settings import RdmaProbeSettings
from producers.probe.rdma.worker_process import WorkerProcess, open_request
from producers.settings import LATER_MS, NicSettings
from schemas import codec
from schemas.ids import nic_id
from schemas.topics import INVENTORY, PROBES

__all__ = ["rdma_device_of", "main", "rdma_unavailable"]

_log = logging.getLogger(__name__)

_OPEN_S: Final = 30.0
_AGAIN_S: Final = 10.0
_CLOSE_S: Final = 2.0
_STATUS_S: Final = 5.0
_MEET_S: Final = 1.0
_POLL_S: Final = 0.1
_SYSFS: Final = Path("/sys")


def rdma_device_of(nic: NicSettings, sysfs: Path = _SYSFS) -> str | None:
    """Return the RDMA device of a NIC: the one it names, else the first that shares its network device."""
    if nic.rdma_device is not None:
        return nic.rdma_device
    if nic.netns is not None:
        return None
    devices = sorted(path.name for path in (sysfs / "class/infiniband").glob("*"))
    return next((device for device in devices if nic.device in netdevs_of(device, sysfs)), None)


def rdma_unavailable(settings: RdmaProbeSettings, nic: NicSettings, sysfs: Path = _SYSFS) -> str | None:
    """Return in one line why a NIC is not probed over RDMA; None where it can be tried."""
    name = nic_id(nic.host, nic.device)
    if settings.enabled == "off":
        return f"{name}: no RDMA probes: rdma_probes.enabled = 'off'"
    device = rdma_device_of(nic, sysfs)
    if device is None:
        return f"{name}: no RDMA probes: no RDMA device beneath {nic.device}"
    if not (sysfs / "class/infiniband" / device).exists():
        return f"{name}: no RDMA probes: {device}: no such RDMA device"
    if device == nic.device:
        return (
            f"{name}: no RDMA probes: the NIC is listed by its RDMA device, whose name they would have:"
            " expected its network device, and rdma_device beside it"
        )
    python = settings.verbs_python or sys.executable
    try:
        tried = subprocess.run(
            [python, "-c", "import pyverbs.device"],
            capture_output=True,
            text=True,
            timeout=_OPEN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: no RDMA probes: {python}: {error}"
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no pyverbs"])[-1]
        return f"{name}: no RDMA probes: {python}: {last} (rdma_probes.verbs_python, or the extra 'rdma')"
    return None


class _Prober:
    """One device's process with what is known of it."""

    def __init__(
        self, settings: RdmaProbeSettings, nic: NicSettings, device: str, key: bytes, sysfs: Path
    ) -> None:
        """Start the process and wait until the device is open. Raises OSError, ValueError."""
        self.nic = nic.model_copy(update={"device": device})
        self.name = nic_id(nic.host, device)
        self.run = int.from_bytes(os.urandom(8), "big") >> 1
        self.since_ns = time.time_ns()
        self.counters: dict[str, int] = {}
        self.stamp_error_ns = 0
        self._early: list[dict[str, Any]] = []
        first = open_request(
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
            flush_ms=settings.flush_ms or LATER_MS,
            hardware=settings.hardware_stamps,
            sysfs=sysfs,
        )
        self.edge = WorkerProcess(first, settings.verbs_python)
        try:
            self.ready = self._opened()
        except BaseException:
            self.edge.close()
            raise
        self._known: dict[str, Any] = {}
        self._settings = settings

    def record(self) -> dict[str, Any]:
        """Return the NIC's announcement as of now."""
        return nic_record(
            self.nic,
            self.ready,
            run=self.run,
            since_ns=self.since_ns,
            announced_ns=time.time_ns(),
            stamp_error_ns=self.stamp_error_ns,
        )

    def meet(self, roster: PeerTable) -> int:
        """Choose the peers anew from who is alive; return how many there are."""
        known = peers_of(roster.alive_ud(self.nic.shard).values(), self.ready["kind"])
        known.pop(self.name, None)
        names, seed = sorted(known), self._settings.peers_seed
        chosen = choose_peers(self.name, names, self._settings.peers, seed, hashes_of(names, seed))
        peers = {name: known[name] for name in chosen}
        if peers != self._known:
            self._known = peers
            self.edge.set_peers(list(peers.values()))
        return len(peers)

    def _batches(self, lines: list[dict[str, Any]]) -> list[bytes]:
        """Return the `ProbeBatch`es among lines of the process."""
        found = []
        for line in lines:
            batch = line.get("batch")
            if batch is not None:
                self.counters, self.stamp_error_ns = batch["counters"], batch["stamp_error_ns"]
                found.append(encode_probe_batch(columns_of(self.name, self.run, batch)))
        return found

    def read(self) -> list[bytes]:
        """Return the `ProbeBatch`es that have come since the last call."""
        early, self._early = self._early, []
        return self._batches(early + self.edge.read())

    def close(self) -> list[bytes]:
        """End the process; return the last `ProbeBatch`es."""
        return self._batches(self._early + self.edge.close())

    def _opened(self) -> dict[str, Any]:
        end = time.monotonic() + _OPEN_S
        while time.monotonic() < end:
            lines = self.edge.read()
            if lines and "ready" in lines[0]:
                self._early = lines[1:]
                ready: dict[str, Any] = lines[0]["ready"]
                return ready
            if self.edge.ended is not None:
                raise ValueError(self.edge.ended)
            select.select([self.edge], [], [], _POLL_S)
        raise ValueError(f"not open within {_OPEN_S:.0f} s")


class _Service:
    """What lasts while a device comes and goes: the log, the inventory, who supervises."""

    def __init__(self, settings: RdmaProbeSettings, nic: NicSettings, device: str, sysfs: Path) -> None:
        """Raises KeyFileError."""
        self._settings, self._nic, self._device, self._sysfs = settings, nic, device, sysfs
        self._key = read_key(settings.key_file)
        client = kafka_client(settings.bootstrap)
        self._registry = _registry(settings.schema_registry_url)
        self._head = codec.header(PROBES.record, self._registry)
        self._roster = PeerTable(settings.silent_s)
        self._outlet = BoundedProducer(client, settings.queue_messages, settings.queue_bytes, settings.compression)
        self._reader = LookupReader(client, {INVENTORY: self._roster.take}, self._registry)
        self._notify = SystemdNotifier()
        self._said = ""

    def run(self, stopping: list[int]) -> None:
        """Probe while the device can be, look for it while it cannot, until `stopping` holds something."""
        self._notify.notify("READY=1")  # a device that is down now may be up later
        again_at = 0.0
        while not stopping:
            if time.monotonic() < again_at:
                time.sleep(_POLL_S)
                self._outlet.poll()
                continue
            again_at = time.monotonic() + _AGAIN_S
            try:
                prober = _Prober(self._settings, self._nic, self._device, self._key, self._sysfs)
            except (OSError, ValueError) as error:
                self._warn(str(error))
                continue
            self._tell_opened(prober)
            died = self._probe(prober, stopping)
            if died is not None:
                self._warn(died)

    def close(self) -> None:
        """Send what waits, and let go of everything."""
        self._notify.notify("STOPPING=1")
        left = self._outlet.close(_CLOSE_S)
        self._reader.close()
        if left:
            _log.warning("%s: %d messages could not be sent before the end", self._device, left)

    def _probe(self, prober: _Prober, stopping: list[int]) -> str | None:
        """Let one process work until it is to end; return why where it did so by itself."""
        announce_at = meet_at = status_at = 0.0
        peers = 0
        while not stopping and prober.edge.ended is None:
            select.select([prober.edge], [], [], _POLL_S)
            self._put(prober.name, prober.read())
            now = time.monotonic()
            if now >= announce_at:
                self._announce(prober.record())
                announce_at = now + self._settings.announce_s
            if self._reader.poll() or now >= meet_at:
                peers, meet_at = prober.meet(self._roster), now + _MEET_S
            self._outlet.poll()
            if now >= status_at:
                status_at = now + _STATUS_S
                self._notify.notify(f"STATUS={_status(prober, peers, self._outlet)}")
        died = prober.edge.ended
        self._put(prober.name, prober.close())
        # A goodbye: peers stop asking now instead of losing probes until the silence shows.
        self._announce(prober.record() | {"probe_port": 0, "ud": None})
        return died

    def _announce(self, record: dict[str, Any]) -> None:
        data = codec.encode(INVENTORY.record, record, self._registry)
        self._outlet.put(INVENTORY.name, record["nic"], data)

    def _put(self, name: str, batches: list[bytes]) -> None:
        for batch in batches:
            self._outlet.put(PROBES.name, name, self._head + batch)

    def _warn(self, reason: str) -> None:
        """Log why there are no probes now, the same reason once."""
        if reason != self._said:
            self._said = reason
            _log.warning(
                "%s/%s: %s; tried again every %.0f s", self._nic.host, self._device, reason, _AGAIN_S
            )

    def _tell_opened(self, prober: _Prober) -> None:
        self._said, ready = "", prober.ready
        _log.info(
            "%s: answers on %d queue pairs, %s, stamps of %s%s, run %d",
            prober.name,
            len(ready["numbers"]),
            ready["kind"],
            "the NIC" if ready["hardware"] else "user space",
            "".join(f" ({why})" for why in ready["refused"]),
            prober.run,
        )
        if not ready["sure"]:
            _log.warning("%s: how its driver spreads paths is not known: they may all be one", prober.name)


def main(settings: RdmaProbeSettings, nic: NicSettings, sysfs: Path = _SYSFS) -> int:
    """Probe until SIGTERM or SIGINT. Returns the exit code: 0 stopped, or nothing to do here, which is logged
    in one line; 2 cannot start."""
    stopping = _stop_on_signals()
    reason, device = rdma_unavailable(settings, nic, sysfs), rdma_device_of(nic, sysfs)
    if reason is not None or device is None:
        _log.info("%s", reason)
        return 0
    try:
        service = _Service(settings, nic, device, sysfs)
    except KeyFileError as error:
        _log.error("%s/%s: %s", nic.host, device, error)
        return 2
    try:
        service.run(stopping)
    finally:
        service.close()
    return 0


def _status(prober: _Prober, peers: int, outlet: BoundedProducer) -> str:
    count = prober.counters
    refused = sum(count.get(name, 0) for name in ("malformed", "bad_mac", "wrong_nic", "stale_time"))
    return (
        f"{peers} peers, {count.get('samples', 0)} samples, {count.get('lost', 0)} lost, {refused} refused, "
        f"{outlet.waiting} messages wait, {outlet.dropped} dropped"
    )


def _registry(url: str | None) -> codec.Registry | None:
    if url is None:
        return None
    from schemas.registry import ConfluentRegistry

    return ConfluentRegistry(url)


def _stop_on_signals() -> list[int]:
    """Return a list that is filled by SIGTERM and SIGINT."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return came
