"""The servo on simulated clocks, and the system call as far as it changes no clock here."""

import ctypes
import json
import time

import pytest

from actuators.clock.discipline import Clockwork, Discipline, Servo, Timex, clock_id_of
from actuators.clock.page import ClockRow
from actuators.settings import DisciplineSettings
from schemas.records import ClockSync

S = 1_000_000_000


class Oscillator:
    """A clock with its own rate and one that is set; replaces Clockwork."""

    def __init__(self, offset_ns=0.0, own_ppb=0.0, found_ppb=1_500.0):
        self.error_ns, self.own_ppb, self.set_ppb = offset_ns, own_ppb, found_ppb
        self.set_calls, self.closed, self.refuse = 0, False, None

    def rate_ppb(self):
        return self.set_ppb

    def set_rate_ppb(self, rate_ppb):
        if self.refuse is not None:
            raise self.refuse
        self.set_calls += 1
        self.set_ppb = rate_ppb

    def close(self):
        self.closed = True

    def run(self, seconds):
        self.error_ns += (self.own_ppb + self.set_ppb) * seconds


def row(clock, at_ns, state=ClockSync.SYNCED, bound_ns=100.0):
    return ClockRow(state, at_ns, 0, 0.0, bound_ns, 0.0, 0.0, offset_fraction_ns=-clock.error_ns)


def drive(discipline, clock, seconds, start_s=0.0, **given):
    """Run the loop; return the errors and the corrections, one per interval."""
    errors, moves = [], []
    step_s = discipline.settings.interval_s
    for i in range(round(seconds / step_s)):
        now_s = start_s + i * step_s
        at_ns = round(now_s * S)
        moves.append(discipline.step(row(clock, at_ns, **given), at_ns, now_s))
        clock.run(step_s)
        errors.append(clock.error_ns)
    return errors, moves


def make(tmp_path, clock, **given):
    settings = DisciplineSettings(**{"mode": "on", "time_constant_s": 20.0, **given})
    return Discipline(settings, tmp_path / "clock.rate", lambda: clock)


def test_settles_without_ringing_and_tracks_a_drifting_clock(tmp_path):
    """100 us off and 5 ppm fast: within five time constants the offset is gone and stays away."""
    clock = Oscillator(100_000.0, own_ppb=5_000.0, found_ppb=0.0)
    errors, moves = drive(make(tmp_path, clock), clock, 400)
    assert all(move.refused is None for move in moves)
    assert min(errors) > -30_000  # critically damped: the integral that cancels the drift overshoots little
    assert max(map(abs, errors[200:])) < 100
    assert clock.set_ppb == pytest.approx(-5_000.0, abs=5)


def test_rate_stays_within_its_limit_and_does_not_wind_up(tmp_path):
    clock = Oscillator(400_000.0, own_ppb=0.0, found_ppb=700.0)
    clock.own_ppb = -700.0
    discipline = make(tmp_path, clock, rate_max_ppm=5.0)
    errors, moves = drive(discipline, clock, 600)
    assert max(abs(move.rate_ppb) for move in moves) == pytest.approx(5_000.0)
    assert min(errors) > -40_000
    assert abs(errors[-1]) < 500


def test_delay_of_the_measurement_leaves_it_stable(tmp_path):
    """Errors that are 3 s old, as after two windows of the clock stage: no oscillation at the smallest
    constant.
    """
    clock = Oscillator(50_000.0, own_ppb=1_000.0, found_ppb=0.0)
    discipline = make(tmp_path, clock, time_constant_s=10.0)
    seen = [clock.error_ns] * 4
    for i in range(300):
        at_ns = i * S
        late = ClockRow(ClockSync.SYNCED, at_ns, 0, 0.0, 100.0, 0.0, 0.0, offset_fraction_ns=-seen[-4])
        discipline.step(late, at_ns, float(i))
        clock.run(1.0)
        seen.append(clock.error_ns)
    assert max(map(abs, seen[150:])) < 50


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"state": ClockSync.UNSYNCED}, "fabric time is UNSYNCED, expected SYNCED"),
        ({"state": ClockSync.HOLDOVER}, "fabric time is HOLDOVER, expected SYNCED"),
        ({"bound_ns": 200_000.0}, "bound 200000 ns, expected at most 100000"),
        ({"bound_ns": float("nan")}, "bound nan ns"),
    ],
)
def test_nothing_is_done_while_fabric_time_is_not_good_enough(tmp_path, given, why):
    clock = Oscillator(10_000.0)
    discipline = make(tmp_path, clock)
    _, moves = drive(discipline, clock, 5, **given)
    assert clock.set_calls == 0
    assert all(why in move.refused for move in moves)
    assert why in discipline.status


@pytest.mark.parametrize("error_ns", [600_000.0, -600_000.0, float("nan"), 1e15])
def test_offset_too_large_to_slew_is_refused_and_reported(tmp_path, error_ns):
    clock = Oscillator(error_ns)
    _, moves = drive(make(tmp_path, clock), clock, 3)
    assert clock.set_calls == 0
    assert "expected within +-500000" in moves[0].refused


def test_interrupted_it_keeps_its_rate_and_resumes(tmp_path):
    clock = Oscillator(50_000.0, own_ppb=2_000.0, found_ppb=0.0)
    discipline = make(tmp_path, clock)
    drive(discipline, clock, 200)
    last_ppb = clock.set_ppb
    drive(discipline, clock, 20, start_s=200, state=ClockSync.HOLDOVER)
    assert clock.set_ppb == last_ppb
    errors, _ = drive(discipline, clock, 200, start_s=220)
    assert abs(errors[-1]) < 100


def test_dry_run_logs_and_changes_nothing(tmp_path):
    clock = Oscillator(10_000.0, found_ppb=123.0)
    discipline = make(tmp_path, clock, mode="dry-run")
    drive(discipline, clock, 10)
    assert "would set -" in discipline.status
    discipline.close()
    assert (clock.set_calls, clock.set_ppb) == (0, 123.0)
    assert list(tmp_path.iterdir()) == []


def test_close_restores_the_original_rate(tmp_path):
    clock = Oscillator(50_000.0, own_ppb=-3_000.0, found_ppb=1_234.5)
    discipline = make(tmp_path, clock)
    drive(discipline, clock, 60)
    assert clock.set_ppb != 1_234.5
    assert (tmp_path / "clock.rate").exists()
    discipline.close()
    assert clock.set_ppb == 1_234.5
    assert clock.closed
    assert not (tmp_path / "clock.rate").exists()
    assert discipline.step(row(clock, 0), 0, 1e9) is None


def test_next_start_restores_the_rate_after_a_crash(tmp_path):
    clock = Oscillator(50_000.0, found_ppb=1_234.5)
    drive(make(tmp_path, clock), clock, 30)  # and never closed
    assert clock.set_ppb != 1_234.5
    again = make(tmp_path, clock)
    assert clock.set_ppb == 1_234.5
    again.close()
    assert clock.set_ppb == 1_234.5


@pytest.mark.parametrize("change", [{"boot": "another"}, {"clock": "ptp9"}, {"found_ppb": 1e9}])
def test_rate_file_of_another_clock_or_boot_changes_nothing(tmp_path, change):
    clock = Oscillator(50_000.0, found_ppb=1_000.0)
    drive(make(tmp_path, clock), clock, 30)
    left = clock.set_ppb
    rate_file = tmp_path / "clock.rate"
    rate_file.write_text(json.dumps(json.loads(rate_file.read_text()) | change))
    make(tmp_path, clock)
    assert clock.set_ppb == left
    assert not rate_file.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"clock": 3}'])
def test_unreadable_rate_file_is_ignored(tmp_path, text):
    (tmp_path / "clock.rate").write_text(text)
    clock = Oscillator()
    make(tmp_path, clock)
    assert clock.set_calls == 0


def test_another_program_on_the_same_clock_stops_it(tmp_path):
    """Two servos would fight: the other one keeps the clock, and its rate is not changed."""
    clock = Oscillator(50_000.0, found_ppb=0.0)
    discipline = make(tmp_path, clock)
    drive(discipline, clock, 10)
    clock.set_ppb = 77_000.0
    _, moves = drive(discipline, clock, 3, start_s=10)
    assert moves[0].refused == "another program set its rate to 77000.0 ppb: discipline stopped"
    assert moves[1:] == [None, None]
    discipline.close()
    assert clock.set_ppb == 77_000.0


def test_refusal_by_the_kernel_is_logged_and_stops_it(tmp_path):
    clock = Oscillator(50_000.0)
    clock.refuse = OSError(1, "clock_adjtime(system): Operation not permitted")
    discipline = make(tmp_path, clock)
    _, moves = drive(discipline, clock, 3)
    assert moves[0].refused == "clock_adjtime(system): Operation not permitted: discipline stopped"
    discipline.close()
    assert list(tmp_path.iterdir()) == []


def test_servo_does_not_jump_after_a_pause():
    servo = Servo(DisciplineSettings(time_constant_s=20.0))
    servo.next(1_000.0, 1.0, ClockSync.SYNCED, 1.0)
    before = servo.rate_ppb
    assert abs(servo.next(1_000.0, 1.0, ClockSync.SYNCED, 3600.0).rate_ppb - before) < 10


def test_interval_must_be_far_below_the_time_constant():
    with pytest.raises(ValueError, match="at most a fifth of time_constant_s, 2"):
        DisciplineSettings(time_constant_s=10, interval_s=5)


def test_structure_is_the_kernels():
    """struct timex has 208 bytes on 64-bit Linux, with its freq behind offset."""
    assert ctypes.sizeof(Timex) == 208
    assert Timex.freq.offset == 16
    assert Timex.tick.offset == 88
    assert Timex.tai.offset == 160


def test_reading_the_system_clocks_rate_needs_no_privilege_and_changes_nothing():
    clock = Clockwork("system", writable=False)
    before = clock.rate_ppb()
    assert abs(before) <= 500_000
    assert clock.rate_ppb() == before
    clock.close()


def test_wrong_clock_is_refused_with_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="ptp0"):
        Clockwork("ptp0", writable=True, devices=tmp_path)
    (tmp_path / "ptp0").write_bytes(b"")
    clock = Clockwork(
        "ptp0", writable=False, devices=tmp_path
    )  # a file is not a clock: the kernel refuses it
    with pytest.raises(OSError, match=r"clock_adjtime\(ptp0\)"):
        clock.rate_ppb()
    with pytest.raises(OSError, match=r"clock_adjtime\(ptp0\)"):
        clock.set_rate_ppb(1.0)
    clock.close()
    assert clock_id_of(3) == -29


def test_real_ptp_clock_can_be_queried():
    import glob

    found = sorted(glob.glob("/dev/ptp*"))
    if not found:
        pytest.skip("this machine has no PTP hardware clock; the servo and the call's form are tested above")
    clock = Clockwork(found[0].removeprefix("/dev/"), writable=False)
    assert abs(clock.rate_ppb()) < 1e9
    clock.close()
    assert time.time_ns()
