"""Decodes and checks the clock page that the actuator writes. Layout: clients/c/fabrictime_clock.h."""

from __future__ import annotations

import math
import os
import struct
import zlib
from typing import Dict, NamedTuple, Tuple

from fabrictime_client.errors import PageUnusable, WrongVersion

MAGIC = b"FTCLOCK\0"
VERSION = 2
PAGE_BYTES = 20480
SEQUENCE_AT = 256
COPY_AT = 320
COPY_BYTES = 8512
MODEL_BYTES = 320
CLOCKS = 32
NICS = 64
RETIRED = 1

UNSYNCED, HOLDOVER, SYNCED = 0, 1, 2
STATES = ("UNSYNCED", "HOLDOVER", "SYNCED")

HEAD = struct.Struct("<8sIIII16sQQQ192s")
MODEL = struct.Struct("<IIQqqddqdddqqqQqQqIIIIqII64s88s")
CLOCK = struct.Struct("<64sIfqqddddq")
NIC = struct.Struct("<60sI")

MAX_NS = 4_600_000_000_000_000_000
"""Largest absolute value of times and offsets, as in the C reader."""


Hot = Tuple[int, int, int, float, float, float, float, float, int]
"""Values of `now`: sequence, raw_at_ns, fabric_at_ns, rest_ns, rate, bound_ns, growth, wander, usable_ns.

With a = ns since raw_at_ns, and as long as a is below usable_ns: time = fabric_at_ns + a + rest_ns + rate a,
bound = bound_ns + growth a + wander a^2.
"""


class Model(NamedTuple):
    """Fabric time as a linear model on CLOCK_MONOTONIC_RAW. Rates are ratios to save a multiplication."""

    hot: Hot
    """The values for `now` while the model is slewed."""
    hot_after: Hot
    """The values for `now` after the slew."""
    sequence: int
    raw_at_ns: int
    slew_ns: int
    holdover_ns: int
    """Time after raw_at_ns from which the state is HOLDOVER or worse, ns."""
    expires_ns: int
    """Time after raw_at_ns from which the state is UNSYNCED, ns."""
    reopen_ns: int
    """Time after raw_at_ns from which the writer counts as late, ns."""
    state: int
    retired: bool
    steps: int
    window: int
    domain: str
    source: str
    reach_ns: int
    """Distance from a clock's at_ns up to which its model may be used, ns."""
    sure_ns: int
    """Distance from a clock's at_ns up to which it is SYNCED, ns."""
    tables_crc: int
    clocks: int
    nics: int
    written_raw_ns: int


class ClockModel(NamedTuple):
    """One clock: if it reads c, fabric time is c + offset_ns + offset_fraction_ns + drift * (c - at_ns)."""

    state: int
    at_ns: int
    offset_ns: int
    offset_fraction_ns: float
    drift: float
    bound_ns: float
    growth: float
    wander: float
    since_ns: int


Tables = Dict[str, ClockModel]


def check_head(data: bytes, size: int) -> str:
    """Return the host name in the first bytes of a page, whose file has `size` bytes. Raises PageUnusable."""
    if len(data) < HEAD.size or data[:8] != MAGIC:
        raise PageUnusable("not a clock page of fabrictime")
    _, version, page_bytes, crc, _, boot, namespace, _, _, host = HEAD.unpack_from(data)
    if version != VERSION:
        raise WrongVersion("version %d, expected %d" % (version, VERSION))
    if page_bytes != PAGE_BYTES or size != PAGE_BYTES:
        raise PageUnusable("%d bytes, expected %d" % (size, PAGE_BYTES))
    if crc != zlib.crc32(data[20 : HEAD.size]):
        raise PageUnusable("its head is corrupt")
    here = boot_id()
    if here is not None and boot != here:
        raise PageUnusable("written before this machine's last boot")
    ours = time_namespace()
    if namespace and ours and namespace != ours:
        raise PageUnusable("written in another time namespace, with another monotonic clock")
    return _text(host)


def boot_id() -> bytes | None:
    """Return the id of the present boot; None if the system provides none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return None


def time_namespace() -> int:
    """Return the inode of this process's time namespace; 0 if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0


def read_model(copy: bytes, sequence: int) -> Model | None:
    """Return the model of a copy; None if the copy is torn or corrupt."""
    (
        crc,
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
        clocks,
        nics,
        tables_crc,
        holdover_ms,
        written,
        expires_ms,
        _,
        source,
        domain,
    ) = MODEL.unpack_from(copy)
    if crc != zlib.crc32(copy[4:MODEL_BYTES]) or state > SYNCED or clocks > CLOCKS or nics > NICS:
        return None
    if not all(map(math.isfinite, (rate, slew, bound, growth, wander))) or bound < 0 or growth < 0:
        return None
    if wander < 0 or abs(rate) > 1e9 or abs(slew) > 1e9 or bound > 1e18 or abs(fabric_at) > MAX_NS:
        return None
    slew_ns = max(0, slew_end - raw_at)
    holdover_ns, expires_ns, reopen_ns = (at - raw_at for at in (holdover, expires, reopen))
    usable_ns = min(expires_ns, reopen_ns)
    if state == SYNCED:
        usable_ns = min(usable_ns, holdover_ns)
    if state == UNSYNCED or flags:
        usable_ns = -1
    rate, slew, growth, wander = rate * 1e-9, slew * 1e-9, growth * 1e-9, wander * 1e-18
    slewed, steep = slew * slew_ns, abs(slew)
    hot_after = (sequence, raw_at, fabric_at, slewed, rate, bound, growth, wander, usable_ns)
    hot = hot_after
    if slew_ns:
        hot = (
            sequence,
            raw_at,
            fabric_at,
            0.0,
            rate + slew,
            bound + steep * slew_ns,
            growth - steep,
            wander,
            min(usable_ns, slew_ns),
        )
    return Model(
        hot,
        hot_after,
        sequence,
        raw_at,
        slew_ns,
        holdover_ns,
        expires_ns,
        reopen_ns,
        state,
        bool(flags & RETIRED),
        steps,
        window,
        _text(domain),
        _text(source),
        expires_ms * 1_000_000,
        holdover_ms * 1_000_000,
        tables_crc,
        clocks,
        nics,
        written,
    )


def read_tables(copy: bytes, model: Model) -> Tables | None:
    """Return the clocks of a copy, by clock name and by NIC name; None if the copy is incomplete."""
    if zlib.crc32(copy[MODEL_BYTES:COPY_BYTES]) != model.tables_crc:
        return None
    clocks = []
    for number in range(model.clocks):
        name, state, fraction, at, offset, drift, bound, growth, wander, since = CLOCK.unpack_from(
            copy, MODEL_BYTES + number * CLOCK.size
        )
        sane = (
            abs(fraction) <= 1 and all(map(math.isfinite, (drift, bound, growth, wander))) and state <= SYNCED
        )
        if not sane or min(bound, growth, wander) < 0 or max(abs(offset), abs(at)) > MAX_NS:
            return None
        row = ClockModel(
            state, at, offset, fraction, drift * 1e-9, bound, growth * 1e-9, wander * 1e-18, since
        )
        clocks.append((_text(name), row))
    rows = dict(reversed(clocks))
    nics_at = MODEL_BYTES + CLOCKS * CLOCK.size
    for number in range(model.nics):
        name, clock = NIC.unpack_from(copy, nics_at + number * NIC.size)
        if clock < len(clocks):
            rows.setdefault(_text(name), clocks[clock][1])
    return rows


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode("utf-8", "replace")


Reading = Tuple[int, int]
