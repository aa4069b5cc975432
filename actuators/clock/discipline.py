"""Disciplines a clock of this host towards fabric time: the servo, and the call that sets the rate.

Once per interval the servo takes the clock's offset and its bound from the page's content. It changes the
clock's rate by `clock_adjtime`, and never steps the clock. The original rate is restored at the end.

The loop is stable even if the disciplined clock also timestamps probes: see docs/clients.md.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypedDict

from actuators.clock.page import ClockRow
from actuators.settings import DisciplineSettings
from schemas.records import ClockSync

_log = logging.getLogger(__name__)

ADJ_FREQUENCY: Final = 0x0002
UNITS_PER_PPB: Final = 65_536 / 1000
"""Units of `clock_adjtime` per ppb: it uses ppm times 2^16 (adjtimex(2))."""
FOREIGN_PPB: Final = 5.0
"""Difference from the rate that was last set which shows that another program has set the rate, ppb."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The servo's decision: a change of the original rate in ppb, or the reason for no change."""

    rate_ppb: float
    refused: str | None = None


class Servo:
    """A proportional-integral controller with a double pole at 1/time constant.

    The clock's error e (clock minus fabric time, ns) changes with the rate r that is set and the clock's own
    drift d: de/dt = d + r. With r = -(2/T) e - (1/T^2) int e dt, the error follows s^2 + (2/T) s + 1/T^2,
    which is (s + 1/T)^2: critically damped, and settled within about five T.
    """

    def __init__(self, settings: DisciplineSettings) -> None:
        self._settings = settings
        self._integral_ppb = 0.0
        self.rate_ppb = 0.0

    def next(self, error_ns: float, bound_ns: float, state: str, passed_s: float) -> Correction:
        """Return the rate correction for the present error; `passed_s` is the time since the last call.

        The rate stays if fabric time is not SYNCED, its bound is too wide, or the error is too large to slew.
        """
        s = self._settings
        if state != ClockSync.SYNCED:
            return Correction(self.rate_ppb, f"fabric time is {state}, expected SYNCED")
        if not bound_ns <= s.bound_max_us * 1000:
            return Correction(
                self.rate_ppb, f"bound {bound_ns:.0f} ns, expected at most {s.bound_max_us * 1000:.0f}"
            )
        if not abs(error_ns) <= s.offset_max_us * 1000:
            return Correction(
                self.rate_ppb, f"offset {error_ns:.0f} ns, expected within +-{s.offset_max_us * 1000:.0f}"
            )
        t, max_ppb = s.time_constant_s, s.rate_max_ppm * 1000
        passed_s = min(max(passed_s, 0.0), 2 * s.interval_s)  # after a pause the integral must not jump
        integral = self._integral_ppb - error_ns * passed_s / (t * t)
        unlimited_ppb = integral - 2 * error_ns / t
        self.rate_ppb = max(-max_ppb, min(max_ppb, unlimited_ppb))
        if self.rate_ppb == unlimited_ppb:  # anti-windup: at the limit the integral stays
            self._integral_ppb = integral
        return Correction(self.rate_ppb)


class Timex(ctypes.Structure):
    """The kernel's struct timex (linux/timex.h), the argument of `clock_adjtime`."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_s", ctypes.c_long),
        ("time_us", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


class Adjustable(Protocol):
    """A clock with a rate that can be read and set, in ppb from its nominal rate."""

    def rate_ppb(self) -> float:
        """Return the present rate, ppb from the nominal rate."""

    def set_rate_ppb(self, rate_ppb: float) -> None:
        """Set the rate, ppb from the nominal rate. Raises OSError."""

    def close(self) -> None:
        """Release the clock."""


def clock_id_of(fd: int) -> int:
    """Return the clock id of an open /dev/ptpN: FD_TO_CLOCKID of the kernel's posix-timers.h."""
    return (~fd << 3) | 3


class Clockwork:
    """CLOCK_REALTIME or /dev/ptpN, adjusted by `clock_adjtime`."""

    def __init__(self, clock: str, *, writable: bool, devices: Path = Path("/dev")) -> None:
        """Open the clock. Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._clock_id = time.CLOCK_REALTIME
        self._name = clock
        if clock != "system":
            self._fd = os.open(devices / clock, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            self._clock_id = clock_id_of(self._fd)

    def rate_ppb(self) -> float:
        """Return the present rate, ppb from the nominal rate. This needs no privilege."""
        return float(self._adjust(Timex()).freq) / UNITS_PER_PPB

    def set_rate_ppb(self, rate_ppb: float) -> None:
        """Set the rate, ppb from the nominal rate, and change nothing else. Raises OSError."""
        self._adjust(Timex(modes=ADJ_FREQUENCY, freq=round(rate_ppb * UNITS_PER_PPB)))

    def close(self) -> None:
        """Close the file of a PTP device."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _adjust(self, timex: Timex) -> Timex:
        if self._libc.clock_adjtime(ctypes.c_int(self._clock_id), ctypes.byref(timex)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"clock_adjtime({self._name}): {os.strerror(number)}")
        return timex


class _SavedRate(TypedDict):
    """The original rate of a clock, saved in a file while the discipline changes the rate."""

    clock: str
    found_ppb: float
    boot: str


class Discipline:
    """Runs the servo on one clock of a host. The rate is restored at the end or at the next start."""

    def __init__(
        self,
        settings: DisciplineSettings,
        rate_file: Path,
        open_clock: Callable[[], Adjustable] | None = None,
    ) -> None:
        """Open the clock. `rate_file`: keeps the original rate while another rate is set. Raises OSError."""
        self.settings = settings
        self.status = ""
        self._rate_file = rate_file
        self._servo = Servo(settings)
        changing = settings.mode == "on"
        self._clock = (open_clock or (lambda: Clockwork(settings.clock, writable=changing)))()
        self._last_s: float | None = None
        self._ended = False
        if changing:
            self._restore_after_crash()
        self._found_ppb = self._set_ppb = self._clock.rate_ppb()

    def step(self, row: ClockRow | None, clock_ns: int, now_s: float) -> Correction | None:
        """Run the servo and return its correction; return None if the servo is not due.

        `row`: the clock's row in the page; `clock_ns`: the clock's reading; `now_s`: monotonic time.
        """
        s = self.settings
        if self._ended or (self._last_s is not None and now_s - self._last_s < s.interval_s):
            return None
        passed_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        if row is None:
            return self._log_correction(
                Correction(self._servo.rate_ppb, f"clock {s.clock}: not in the page yet")
            )
        away_ns = clock_ns - row.at_ns
        error_ns = -(row.offset_ns + (row.offset_fraction_ns + row.drift_ppb * 1e-9 * away_ns))
        bound_ns = row.bound_ns + row.growth_ppb * 1e-9 * abs(away_ns)
        correction = self._servo.next(error_ns, bound_ns, row.state, passed_s)
        if correction.refused is None and s.mode == "on":
            correction = self._apply(correction)
        return self._log_correction(correction, error_ns)

    def close(self) -> None:
        """Restore the original rate, unless another program has taken over the clock."""
        if self.settings.mode == "on" and not self._ended:
            try:
                self._restore(self._found_ppb)
            except OSError as error:
                _log.error(
                    "%s: rate could not be restored to %.1f ppb: %s",
                    self.settings.clock,
                    self._found_ppb,
                    error,
                )
        self._ended = True
        self._clock.close()

    def _apply(self, correction: Correction) -> Correction:
        now_ppb = self._clock.rate_ppb()
        if abs(now_ppb - self._set_ppb) > FOREIGN_PPB:
            self._ended = True  # two servos would fight over the clock
            self._rate_file.unlink(missing_ok=True)
            return Correction(
                correction.rate_ppb, f"another program set its rate to {now_ppb:.1f} ppb: discipline stopped"
            )
        if not self._rate_file.exists():
            self._save_rate()
        try:
            self._clock.set_rate_ppb(self._found_ppb + correction.rate_ppb)
        except OSError as error:
            self._ended = True
            self._rate_file.unlink(missing_ok=True)
            return Correction(correction.rate_ppb, f"{error.strerror or error}: discipline stopped")
        self._set_ppb = self._clock.rate_ppb()
        return correction

    def _save_rate(self) -> None:
        data: _SavedRate = {"clock": self.settings.clock, "found_ppb": self._found_ppb, "boot": _boot()}
        fresh = self._rate_file.with_name(f"{self._rate_file.name}.new")
        fresh.write_text(json.dumps(data), encoding="utf-8")
        fresh.replace(self._rate_file)

    def _restore_after_crash(self) -> None:
        """Restore the rate that a crashed actuator left changed."""
        try:
            left: _SavedRate = json.loads(self._rate_file.read_text(encoding="utf-8"))
            same = left["clock"] == self.settings.clock and left["boot"] == _boot()
            found_ppb = float(left["found_ppb"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: cannot be read and is ignored: %s", self._rate_file, error)
            return
        if same and abs(found_ppb) <= 500_000:
            _log.info(
                "%s: rate restored to %.1f ppb, as it was before a former run", self.settings.clock, found_ppb
            )
            self._restore(found_ppb)
        else:
            self._rate_file.unlink(missing_ok=True)

    def _restore(self, rate_ppb: float) -> None:
        if self._clock.rate_ppb() != rate_ppb:
            self._clock.set_rate_ppb(rate_ppb)
        self._rate_file.unlink(missing_ok=True)

    def _log_correction(self, correction: Correction, error_ns: float | None = None) -> Correction:
        verb = "would set" if self.settings.mode == "dry-run" else "set"
        if correction.refused is not None:
            line = f"{self.settings.clock}: not disciplined: {correction.refused}"
        else:
            line = f"{self.settings.clock}: {error_ns or 0.0:+.0f} ns, {verb} {correction.rate_ppb:+.1f} ppb"
        if (correction.refused is None) != (": not disciplined" not in self.status) or not self.status:
            _log.info("%s", line)
        self.status = line
        return correction


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
