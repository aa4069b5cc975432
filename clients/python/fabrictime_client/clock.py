"""Fabric time from the page of this host: `Clock(path)`.

The page is mapped read-only. Times are ns since the Unix epoch, each with a bound. The mapping stays valid in
a forked child, and threads may share a `Clock`.
"""

from __future__ import annotations

import mmap
import os
import stat as stat_module
import time
from typing import NamedTuple

from fabrictime_client import _page
from fabrictime_client._page import HOLDOVER, STATES, SYNCED, UNSYNCED, Model, Tables
from fabrictime_client.errors import PageMissing, PageUnusable, UnknownClock, Unsynced

_ENVIRONMENT = "FABRICTIME_CLOCK"
_TRIES = 100
_REOPEN_EVERY_NS = 1_000_000_000
_MAX_BOUND_NS = 1e18

_raw_ns = time.clock_gettime_ns
_RAW = time.CLOCK_MONOTONIC_RAW
_SEQUENCE = _page.SEQUENCE_AT // 8
_new = tuple.__new__


class Reading(NamedTuple):
    """A time and its error bound, ns. The true error is below the bound 99.9% of the time."""

    time_ns: int
    bound_ns: int


class Status(NamedTuple):
    """The present state of the clock page."""

    state: str
    host: str
    domain: str
    source: str
    """The clock of this host from which fabric time is derived."""
    window: int
    steps: int
    """Number of times that fabric time has stepped."""
    written_age_ns: int
    """Time since the actuator last wrote the page, ns."""
    clocks: tuple[str, ...]
    """Names of the clocks and NICs that `convert` accepts."""


def default_path() -> str:
    """Return $FABRICTIME_CLOCK, or $XDG_RUNTIME_DIR/fabrictime/clock if it exists, or the path in /run."""
    environment_path = os.environ.get(_ENVIRONMENT)
    if environment_path:
        return environment_path
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        path = os.path.join(runtime, "fabrictime", "clock")
        if os.access(path, os.R_OK):
            return path
    return "/run/fabrictime/clock"


class Clock:
    """The clock page at `path`, or, if None, at `default_path()`. Raises PageMissing or PageUnusable."""

    def __init__(self, path: str | None = None) -> None:
        self.path = os.fspath(path) if path is not None else default_path()
        self._looked_ns = -_REOPEN_EVERY_NS
        self._quads: memoryview
        self._file: tuple[int, int]
        self.host = ""
        self._model: Model
        self._hot: _page.Hot
        self._tables: tuple[int, Tables] = (-1, {})
        self._open()

    def now(self) -> Reading:
        """Return the present fabric time. Raises Unsynced.

        Fabric time never runs backwards, except at a step (see `status`). A step happens only if a clock was
        wrong by more than the actuator's limit.
        """
        sequence, raw_at, fabric_at, rest, rate, bound, growth, wander, usable = self._hot
        if sequence != self._quads[_SEQUENCE]:
            sequence, raw_at, fabric_at, rest, rate, bound, growth, wander, usable = self._load().hot
        ahead = _raw_ns(_RAW) - raw_at
        if not 0 <= ahead < usable:
            return self._now_closely()
        bound += (growth + wander * ahead) * ahead
        if not bound <= _MAX_BOUND_NS:
            raise Unsynced("%s: the bound has grown beyond %g ns" % (self.path, _MAX_BOUND_NS))
        # Like Reading(...), at half the cost.
        return _new(Reading, (fabric_at + ahead + round(rest + rate * ahead), int(bound) + 2))

    def convert(self, stamp_ns: int, clock: str) -> Reading:
        """Return the fabric time at which `clock` of this host read `stamp_ns`.

        `clock` names a clock (ptp0, system) or a NIC device (eth0), with or without the host's name. Raises
        UnknownClock, and Unsynced if the stamp is too far from the last measurement.
        """
        model, tables = self._load_tables()
        self._reopen_if_late(model)
        host, slash, name = clock.rpartition("/")
        row = tables.get(clock if not slash or host != self.host else name)
        if row is None:
            names = ", ".join(sorted(tables)) or "none yet"
            raise UnknownClock("%s: no clock %r, expected one of %s" % (self.path, clock, names))
        away = stamp_ns - row.at_ns
        if (
            row.state == UNSYNCED
            or stamp_ns < row.since_ns
            or abs(away) > model.reach_ns
            or abs(stamp_ns) > _page.MAX_NS
        ):
            raise Unsynced("%s: %s: %s" % (self.path, clock, _why_not(row, away, stamp_ns, model)))
        rest = row.offset_fraction_ns + row.drift * away
        bound = row.bound_ns + row.growth * abs(away) + row.wander * away * away
        if not (bound <= _MAX_BOUND_NS and abs(rest) < _MAX_BOUND_NS):
            raise Unsynced("%s: %s: the bound is beyond %g ns" % (self.path, clock, _MAX_BOUND_NS))
        return Reading(stamp_ns + row.offset_ns + round(rest), int(bound) + 2)

    def state(self) -> str:
        """Return SYNCED, HOLDOVER or UNSYNCED: the state that the reading of `now` would have."""
        model = self._current()
        return STATES[self._state(model, _raw_ns(_RAW) - model.raw_at_ns)]

    def status(self) -> Status:
        """Return the state of the page."""
        model, tables = self._load_tables()
        raw_ns = _raw_ns(_RAW)
        state = STATES[self._state(model, raw_ns - model.raw_at_ns)]
        return Status(
            state,
            self.host,
            model.domain,
            model.source,
            model.window,
            model.steps,
            raw_ns - model.written_raw_ns,
            tuple(sorted(tables)),
        )

    def close(self) -> None:
        """Close the page. Later calls raise ValueError."""
        self._quads.release()

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "Clock(%r)" % (self.path,)

    def _open(self) -> None:
        """Map and read the file at the path. If that fails, raise PageMissing or PageUnusable and change
        nothing."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise PageMissing("%s: %s, expected the page of a running actuator" % (self.path, why)) from None
        try:
            file = os.fstat(fd)
            if not stat_module.S_ISREG(file.st_mode):
                raise PageUnusable("not a regular file")
            host = _page.check_head(os.pread(fd, _page.HEAD.size, 0), file.st_size)
            quads = memoryview(mmap.mmap(fd, _page.PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
            copied = _copy_of(quads)
            model = None if copied is None else _page.read_model(*copied)
            tables = None if copied is None or model is None else _page.read_tables(copied[0], model)
            if model is None or tables is None:
                raise PageUnusable("its content is corrupt")
        except PageUnusable as error:
            raise type(error)("%s: %s" % (self.path, error)) from None
        except (OSError, ValueError) as error:
            raise PageUnusable("%s: cannot be mapped: %s" % (self.path, error)) from None
        finally:
            os.close(fd)
        # The old mapping stays until its last reader drops it, so no thread finds it closed during a read.
        self._model, self._hot, self._tables = model, model.hot, (model.sequence, tables)
        self._quads, self.host = quads, host
        self._file = (file.st_dev, file.st_ino)

    def _load(self) -> Model:
        """Read the model from the page again. Raises PageUnusable if no complete copy can be read."""
        for _ in range(_TRIES):
            copied = _copy_of(self._quads, _page.MODEL_BYTES)
            if copied is None:
                break
            model = _page.read_model(*copied)
            if model is not None:
                self._model, self._hot = model, model.hot
                return model
        raise PageUnusable("%s: its content is corrupt" % self.path)

    def _current(self) -> Model:
        model = self._model
        return model if model.sequence == self._quads[_SEQUENCE] else self._load()

    def _load_tables(self) -> tuple[Model, Tables]:
        model = self._current()
        sequence, tables = self._tables
        if sequence == model.sequence:
            return model, tables
        for _ in range(_TRIES):
            copied = _copy_of(self._quads)
            if copied is None:
                break
            fresh = _page.read_model(*copied)
            fresh_tables = None if fresh is None else _page.read_tables(copied[0], fresh)
            if fresh is not None and fresh_tables is not None:
                self._model, self._hot, self._tables = fresh, fresh.hot, (fresh.sequence, fresh_tables)
                return fresh, fresh_tables
        raise PageUnusable("%s: its content is corrupt" % self.path)

    def _now_closely(self) -> Reading:
        """Return fabric time near a model's limits: when its slew has ended, or its writer is late.

        Raises Unsynced.
        """
        model = self._current()
        ahead = _raw_ns(_RAW) - model.raw_at_ns
        if self._state(model, ahead) == UNSYNCED:
            raise Unsynced(self._why(model, ahead))
        hot = model.hot if ahead < model.slew_ns else model.hot_after
        if self._model is model:
            self._hot = hot
        _, _, fabric_at, rest, rate, bound, growth, wander, _ = hot
        bound += (growth + wander * abs(ahead)) * abs(ahead)
        if not bound <= _MAX_BOUND_NS:
            raise Unsynced("%s: the bound has grown beyond %g ns" % (self.path, _MAX_BOUND_NS))
        return Reading(fabric_at + ahead + round(rest + rate * ahead), int(bound) + 2)

    def _state(self, model: Model, ahead_ns: int) -> int:
        self._reopen_if_late(model)
        if model.state == UNSYNCED or ahead_ns >= model.expires_ns or ahead_ns < -_REOPEN_EVERY_NS:
            return UNSYNCED
        return HOLDOVER if model.state == SYNCED and ahead_ns >= model.holdover_ns else model.state

    def _reopen_if_late(self, model: Model) -> None:
        """If the page's writer is late, open the file that is now at the path, at most once a second."""
        raw_ns = _raw_ns(_RAW)
        late = model.retired or raw_ns - model.raw_at_ns >= model.reopen_ns
        if not late or raw_ns - self._looked_ns < _REOPEN_EVERY_NS:
            return
        self._looked_ns = raw_ns
        try:
            file = os.stat(self.path)
            if (file.st_dev, file.st_ino) != self._file:
                self._open()
        except (OSError, PageMissing, PageUnusable):
            return  # the old page states how long it is valid

    def _why(self, model: Model, ahead_ns: int) -> str:
        if model.state != UNSYNCED and ahead_ns >= model.expires_ns:
            age_s = (_raw_ns(_RAW) - model.written_raw_ns) / 1e9
            return "%s: expired, last written %.1f s ago" % (self.path, age_s)
        if model.state != UNSYNCED:
            return "%s: written %.1f s ahead of this machine's clock" % (self.path, -ahead_ns / 1e9)
        return "%s: UNSYNCED: no clock of this host is measured" % self.path


def _copy_of(quads: memoryview, size: int = _page.COPY_BYTES) -> tuple[bytes, int] | None:
    """Return the first `size` bytes of a complete copy, and its sequence number.

    None if the writer interrupts every attempt. The checksum detects an incomplete copy.
    """
    for _ in range(_TRIES):
        sequence = quads[_SEQUENCE]
        start = (_page.COPY_AT + (sequence & 1) * _page.COPY_BYTES) // 8
        data = quads[start : start + size // 8].tobytes()
        if quads[_SEQUENCE] == sequence:
            return data, sequence
    return None


def _why_not(row: _page.ClockModel, away_ns: int, stamp_ns: int, model: Model) -> str:
    if row.state == UNSYNCED:
        return "UNSYNCED"
    if stamp_ns < row.since_ns:
        return "stamp %d is from before a step of that clock" % stamp_ns
    reach_s = model.reach_ns / 1e9
    return "stamp %d is %.1f s from the last measurement, expected within %.1f s" % (
        stamp_ns,
        away_ns / 1e9,
        reach_s,
    )


__all__: list[str] = ["Clock", "Reading", "Status", "default_path"]
