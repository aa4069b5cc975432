"""Encodes the clock page, and writes the file that holds it.

The layout is version 2 of clients/c/fabrictime_clock.h. Programs map the file. A writer continues the page of
a former writer if the page is valid. Otherwise a new file replaces it, and the old page is marked retired.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actuators.clock.timescale import RawClockModel, SlewedModel
from native.core.hostclock import PageWriter, raw_ns
from schemas.records import ClockSync

MAGIC: Final = b"FTCLOCK\0"
VERSION: Final = 2
PAGE_BYTES: Final = 20480
SEQUENCE_AT: Final = 256
COPY_AT: Final = 320
CLOCKS: Final = 32
NICS: Final = 64
RETIRED: Final = 1

HEAD: Final = struct.Struct("<8sIIII16sQQQ192s")
MODEL: Final = struct.Struct("<IIQqqddqdddqqqQqQqIIIIqII64s88s")
CLOCK: Final = struct.Struct("<64sIfqqddddq")
NIC: Final = struct.Struct("<60sI")
COPY_BYTES: Final = MODEL.size + CLOCKS * CLOCK.size + NICS * NIC.size

STATES: Final = (ClockSync.UNSYNCED, ClockSync.HOLDOVER, ClockSync.SYNCED)

ALWAYS_NS: Final = -(2**63)
_MODES: Final = {"owner": 0o600, "group": 0o640, "all": 0o644}
_DIRECTORY_MODES: Final = {"owner": 0o700, "group": 0o750, "all": 0o755}


class PageError(OSError):
    """Raised if the page cannot be created or locked at its path. The message is one line."""


@dataclass(frozen=True, slots=True)
class ClockRow:
    """The relation of one clock of the host to fabric time.

    When the clock reads c, fabric time is c + offset_ns + offset_fraction_ns + drift_ppb * 1e-9 * (c -
    at_ns).
    """

    state: ClockSync
    at_ns: int
    offset_ns: int
    drift_ppb: float
    bound_ns: float
    growth_ppb: float
    wander_ppb_per_s: float
    since_ns: int = ALWAYS_NS
    offset_fraction_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Content:
    """A page's content. Names in `clocks` and `nics` omit the host's name; `nics` maps NIC to clock."""

    state: ClockSync = ClockSync.UNSYNCED
    slewed: SlewedModel = field(default_factory=lambda: SlewedModel(RawClockModel(0, 0, 0.0, 0.0, 0.0, 0.0)))
    holdover_raw_ns: int = 0
    expires_raw_ns: int = 0
    reopen_raw_ns: int = 0
    written_raw_ns: int = 0
    steps: int = 0
    window: int = 0
    domain: str = ""
    source: str = ""
    holdover_ms: int = 0
    expires_ms: int = 0
    clocks: Mapping[str, ClockRow] = field(default_factory=dict)
    nics: Mapping[str, str] = field(default_factory=dict)
    retired: bool = False


def _fixed(text: str, size: int) -> bytes:
    """Return the text in UTF-8, truncated so that at least one NUL follows in `size` bytes."""
    return text.encode()[: size - 1]


def _fits(name: str, size: int) -> bool:
    return 0 < len(name.encode()) < size


def pack(content: Content) -> bytes:
    """Encode one copy of the page. Clocks and NICs beyond the copy's capacity are omitted."""
    clocks = [(name, row) for name, row in content.clocks.items() if _fits(name, 64)][:CLOCKS]
    index = {name: number for number, (name, _) in enumerate(clocks)}
    nics = [
        (name, index[clock]) for name, clock in content.nics.items() if clock in index and _fits(name, 60)
    ][:NICS]
    tables = bytearray(COPY_BYTES - MODEL.size)
    for number, (name, row) in enumerate(clocks):
        CLOCK.pack_into(
            tables,
            number * CLOCK.size,
            _fixed(name, 64),
            STATES.index(row.state),
            row.offset_fraction_ns,
            row.at_ns,
            row.offset_ns,
            row.drift_ppb,
            row.bound_ns,
            row.growth_ppb,
            row.wander_ppb_per_s,
            row.since_ns,
        )
    for number, (name, clock) in enumerate(nics):
        NIC.pack_into(tables, CLOCKS * CLOCK.size + number * NIC.size, _fixed(name, 60), clock)
    model = content.slewed.model
    domain_hash = int.from_bytes(hashlib.blake2b(content.domain.encode(), digest_size=8).digest(), "little")
    body = MODEL.pack(
        0,
        STATES.index(content.state),
        RETIRED if content.retired else 0,
        model.raw_at_ns,
        model.fabric_at_ns,
        model.rate_ppb,
        content.slewed.slew_ppb,
        max(content.slewed.slew_end_raw_ns, model.raw_at_ns),
        model.bound_ns,
        model.growth_ppb,
        model.wander_ppb_per_s,
        content.holdover_raw_ns,
        content.expires_raw_ns,
        content.reopen_raw_ns,
        content.steps,
        content.window,
        domain_hash if content.domain else 0,
        os.getpid(),
        len(clocks),
        len(nics),
        zlib.crc32(tables),
        content.holdover_ms,
        content.written_raw_ns,
        content.expires_ms,
        0,
        _fixed(content.source, 64),
        _fixed(content.domain, 88),
    )[4:]
    return zlib.crc32(body).to_bytes(4, "little") + body + bytes(tables)


def unpack(copy: bytes) -> Content | None:
    """Decode a copy without its tables, which a new writer does not need. Return None if it is corrupt."""
    if zlib.crc32(copy[4 : MODEL.size]) != int.from_bytes(copy[:4], "little"):
        return None
    (
        _,
        state,
        flags,
        raw_at,
        fabric_at,
        rate,
        slew,
        slew_end,
        bound,
        growth,
        wander,
        holdover,
        expires,
        reopen,
        steps,
        window,
        _,
        _,
        _,
        _,
        _,
        holdover_ms,
        written,
        expires_ms,
        _,
        source,
        domain,
    ) = MODEL.unpack_from(copy)
    if state >= len(STATES):
        return None
    return Content(
        STATES[state],
        SlewedModel(RawClockModel(raw_at, fabric_at, rate, bound, growth, wander), slew, slew_end),
        holdover,
        expires,
        reopen,
        written,
        steps,
        window,
        _text(domain),
        _text(source),
        holdover_ms,
        expires_ms,
        retired=bool(flags & RETIRED),
    )


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode("utf-8", "replace")


def boot_id() -> bytes:
    """Return the id of this boot of the machine; zeros if the system has none."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    return bytes(16)


def time_namespace() -> int:
    """Return the inode of this process's time namespace; 0 if the kernel has none."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/time").st_ino
    return 0


def _head(host: str) -> bytes:
    head = HEAD.pack(MAGIC, VERSION, PAGE_BYTES, 0, 0, boot_id(), time_namespace(), 0, 0, host.encode()[:191])
    return head[:16] + zlib.crc32(head[20:]).to_bytes(4, "little") + head[20:]


class PageFile:
    """The file of one host's page. A lock admits one writer; the kernel releases it when the process ends."""

    def __init__(self, path: Path, host: str, readable: str = "owner") -> None:
        """Open or create the page. Raises PageError."""
        self.path = path
        self._mode = _MODES[readable]
        self.last: Content | None = None
        """Content of a former writer's page, if it is valid."""
        try:
            path.parent.mkdir(mode=_DIRECTORY_MODES[readable], parents=True, exist_ok=True)
            self._take(host)
        except PageError:
            raise
        except OSError as error:
            raise PageError(
                f"clock_file {path}: {error.strerror or error}, expected a file that this user can write"
            ) from None

    def _take(self, host: str) -> None:
        former = self._open_former()
        head = _head(host)
        if former is not None and self._is_valid(former, head):
            self._fd = former
            self._map()
            self.last = unpack(self._writer.read())
            if self.last is not None:
                os.fchmod(former, self._mode)
                return
            self._writer.close()
        self._fd = self._new_file(head)
        if former is not None:
            _retire(former)
            os.close(former)
        self._map()

    def _open_former(self) -> int | None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise PageError(f"clock_file {self.path}: another actuator writes it") from None
        file_status = os.fstat(fd)
        if not stat.S_ISREG(file_status.st_mode) or file_status.st_uid != os.geteuid():
            os.close(fd)
            raise PageError(f"clock_file {self.path}: expected a regular file of this user, or none")
        return fd

    @staticmethod
    def _is_valid(fd: int, head: bytes) -> bool:
        return os.fstat(fd).st_size == PAGE_BYTES and os.pread(fd, HEAD.size, 0) == head

    def _new_file(self, head: bytes) -> int:
        """Write a complete page under another name, then rename it, so that readers never map half a page."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, self._mode)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sequence = (2 * raw_ns()).to_bytes(
                8, "little"
            )  # differs from the last file's, so readers notice the change
            data = head + sequence + bytes(COPY_AT - SEQUENCE_AT - 8) + 2 * pack(Content())
            os.pwrite(fd, data.ljust(PAGE_BYTES, b"\0"), 0)
            os.rename(fresh, self.path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            raise
        return fd

    def _map(self) -> None:
        self._writer = PageWriter(self._fd, PAGE_BYTES, SEQUENCE_AT, COPY_AT, COPY_BYTES)

    def write(self, content: Content, from_raw_ns: int = 0, latest_raw_ns: int = 2**63 - 1) -> bool:
        """Write `content` once the raw clock has reached `from_raw_ns`.

        Write nothing and return False if the raw clock is already beyond `latest_raw_ns`.
        """
        return self._writer.write(pack(content), from_raw_ns, latest_raw_ns)

    def in_place(self) -> bool:
        """Return True if the path still refers to this file."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def retire(self) -> None:
        """Mark the page as retired, because another file has replaced it."""
        self._writer.write(pack(Content(retired=True)))

    def close(self) -> None:
        """Close the page. The file stays: readers use it until it expires, and a new writer can resume."""
        self._writer.close()
        os.close(self._fd)


def _retire(fd: int) -> None:
    """Mark another writer's page as retired, if the file is still a valid page."""
    if os.fstat(fd).st_size != PAGE_BYTES or os.pread(fd, 8, 0) != MAGIC:
        return
    with contextlib.suppress(OSError, ValueError):
        old = PageWriter(fd, PAGE_BYTES, SEQUENCE_AT, COPY_AT, COPY_BYTES)
        old.write(pack(Content(retired=True)))
        old.close()
