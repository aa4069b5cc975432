"""Both readers on one page: they agree with the written content, and return no unknown time."""

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fabrictime_client
from actuators.clock import page as writer
from actuators.clock.page import PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from fabrictime_client import Clock, PageMissing, PageUnusable, UnknownClock, Unsynced, WrongVersion, _page
from native.core.hostclock import raw_ns
from schemas.records import ClockSync

S = 1_000_000_000
STATES = {0: ClockSync.UNSYNCED, 1: ClockSync.HOLDOVER, 2: ClockSync.SYNCED}
BAD_PAGE, VERSION, OTHER_BOOT, NO_CLOCK = -2, -3, -4, -5


@pytest.mark.parametrize("dialect", ["c11", "gnu11", "c17", "c++11", "c++17", "gnu++17"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_header_compiles_without_a_warning(made, compiler, tmp_path, dialect, level):
    source = """
#include "fabrictime_clock.h"
int main(void) {
  ft_reader clock;
  int64_t time_ns, bound_ns;
  if (ft_open(&clock, "/nowhere") != FT_NO_PAGE) return 1;
  if (ft_now(&clock, &time_ns, &bound_ns) != FT_UNSYNCED || time_ns || bound_ns != INT64_MAX) return 2;
  if (ft_convert(&clock, "eth0", 1, &time_ns, &bound_ns) != FT_UNSYNCED) return 3;
  ft_close(&clock);
  return 0;
}
"""
    made.run_source(compiler, tmp_path, source, dialect, level)


def test_writer_header_and_package_agree_on_the_layout(made, reader, compiler):
    done = subprocess.run([reader.program, "layout"], capture_output=True, text=True, check=True)
    values = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    in_c = {name: int(value) for name, value in values.items()}
    assert in_c["sizeof(ft_page_head)"] == writer.HEAD.size == _page.HEAD.size
    assert in_c["sizeof(ft_page_model)"] == writer.MODEL.size == _page.MODEL.size == _page.MODEL_BYTES
    assert in_c["sizeof(ft_page_clock)"] == writer.CLOCK.size == _page.CLOCK.size
    assert in_c["sizeof(ft_page_nic)"] == writer.NIC.size == _page.NIC.size
    assert in_c["sizeof(ft_page_copy)"] == writer.COPY_BYTES == _page.COPY_BYTES
    assert in_c["offsetof(ft_page_model, expires_ms)"] == 160
    assert in_c["offsetof(ft_page_model, domain)"] == 232
    assert writer.MODEL.format == _page.MODEL.format
    header = (made.HEADER / "fabrictime_clock.h").read_text()
    for name, value in {
        "VERSION": writer.VERSION,
        "BYTES": writer.PAGE_BYTES,
        "CLOCKS": writer.CLOCKS,
        "NICS": writer.NICS,
        "SEQUENCE": writer.SEQUENCE_AT,
        "COPY": writer.COPY_AT,
    }.items():
        assert re.search(rf"#define FT_PAGE_{name}\s+{value}u", header), name


def exact(whole_and_rest):
    """In whole ns: a double near 1.8e18 is good to 128 ns only."""
    whole, rest = whole_and_rest
    return whole + round(rest)


def test_now_follows_the_pages_model_in_both(page, made, reader):
    model = RawClockModel(raw_ns() - S, time.time_ns(), 20_000.0, 50.0, 20.0, 3.0)
    page.write(made.content(slewed=SlewedModel(model)))
    with Clock(page.path) as clock:
        before = raw_ns()
        time_ns, bound_ns = clock.now()
        after = raw_ns()
    for state, read_ns, bound, low, high in ((2, time_ns, bound_ns, before, after), reader("now", page.path)):
        assert state == 2
        assert exact(model.fabric_ns(low)) - 1 <= read_ns <= exact(model.fabric_ns(high)) + 1
        assert model.bound_at(low) <= bound <= model.bound_at(high) + 3


def test_the_remaining_slew_is_in_the_bound(page, made, reader):
    """A model 10 us behind its place, slewed at 1 ppm: nearly 10 us of bound at first."""
    begin = raw_ns()
    slewed = SlewedModel(RawClockModel(begin, 10 * S, 0.0, 50.0, 0.0, 0.0), 1_000.0, begin + 10 * S)
    page.write(made.content(slewed=slewed))
    clock = Clock(page.path)
    low, reading, high = raw_ns(), clock.now(), raw_ns()
    state, time_ns, bound_ns, c_low, c_high = reader("now", page.path)
    assert state == 2
    for read_ns, bound, first, last in ((*reading, low, high), (time_ns, bound_ns, c_low, c_high)):
        assert exact(slewed.fabric_ns(first)) - 1 <= read_ns <= exact(slewed.fabric_ns(last)) + 1
        assert slewed.bound_at(last) - 1 <= bound <= slewed.bound_at(first) + 3
        own_place = 10 * S + (first - begin) + 10_000
        assert abs(own_place - read_ns) <= bound + (last - first)


@pytest.mark.parametrize("name", ["ptp0", "eth0", "h1/ptp0", "h1/eth1", "system", "eth2", "h1/system"])
@pytest.mark.parametrize("away_ns", [0, 1_234_567_891, -5 * S, 59 * S])
def test_stamp_is_converted_by_clock_and_by_nic(page, made, reader, name, away_ns):
    given = made.content()
    page.write(given)
    row = given.clocks["system" if name.endswith(("system", "eth2")) else "ptp0"]
    stamp_ns = row.at_ns + away_ns
    exact = stamp_ns + row.offset_ns + round(row.offset_fraction_ns + row.drift_ppb * 1e-9 * away_ns)
    bound = row.bound_ns + row.growth_ppb * 1e-9 * abs(away_ns) + row.wander_ppb_per_s * (away_ns * 1e-9) ** 2
    with Clock(page.path) as clock:
        time_ns, bound_ns = clock.convert(stamp_ns, name)
    state, c_time_ns, c_bound_ns = reader("convert", page.path, name, stamp_ns)
    assert STATES[state] == (ClockSync.SYNCED if abs(away_ns) <= 10 * S else ClockSync.HOLDOVER)
    assert abs(time_ns - exact) <= 1
    assert abs(c_time_ns - exact) <= 1
    assert bound <= bound_ns <= bound + 3
    assert bound <= c_bound_ns <= bound + 3


def test_an_unknown_clock_is_named_with_the_known_ones(page, reader):
    with Clock(page.path) as clock:
        with pytest.raises(
            UnknownClock, match=r"no clock 'ptp9', expected one of eth0, eth1, eth2, ptp0, system"
        ):
            clock.convert(0, "ptp9")
        for name in ("h2/ptp0", "", "/", "h1/", "p" * 64, "p" * 1000):
            with pytest.raises(UnknownClock):
                clock.convert(0, name)
            assert reader("convert", page.path, name, 0)[0] == NO_CLOCK


def test_a_stamp_too_far_from_the_last_measurement_is_unsynced(page, made, reader):
    given = made.content()
    row = replace(given.clocks["ptp0"], since_ns=given.clocks["ptp0"].at_ns - 2 * S)
    page.write(replace(given, clocks={**given.clocks, "ptp0": row}))
    with Clock(page.path) as clock:
        for name, stamp_ns, why in (
            ("system", row.at_ns + 61 * S, "61.0 s from the last measurement"),
            ("system", row.at_ns - 61 * S, "-61.0 s from the last measurement"),
            ("ptp0", row.at_ns - 3 * S, "from before a step"),
            ("ptp0", 2**63 - 1, "from the last measurement"),
            ("system", -(2**63), "from the last measurement"),
        ):
            with pytest.raises(Unsynced, match=why):
                clock.convert(stamp_ns, name)
            assert reader("convert", page.path, name, stamp_ns) == [0, 0, 2**63 - 1]


@pytest.mark.parametrize(
    ("state", "holdover_s", "expires_s", "seen"),
    [
        (ClockSync.SYNCED, 10, 60, ClockSync.SYNCED),
        (ClockSync.SYNCED, -1, 60, ClockSync.HOLDOVER),
        (ClockSync.HOLDOVER, 10, 60, ClockSync.HOLDOVER),
        (ClockSync.SYNCED, -2, -1, ClockSync.UNSYNCED),
        (ClockSync.UNSYNCED, 10, 60, ClockSync.UNSYNCED),
        (ClockSync.HOLDOVER, -2, -1, ClockSync.UNSYNCED),
    ],
)
def test_the_state_follows_the_age_of_the_page(page, made, reader, state, holdover_s, expires_s, seen):
    """Also without a writer: the page states how long it is valid."""
    now = raw_ns()
    page.write(made.content(state, holdover_raw_ns=now + holdover_s * S, expires_raw_ns=now + expires_s * S))
    with Clock(page.path) as clock:
        assert clock.state() == seen
        if seen == ClockSync.UNSYNCED:
            with pytest.raises(Unsynced):
                clock.now()
        else:
            assert clock.now().bound_ns < 100
    read = reader("now", page.path)
    assert STATES[read[0]] == seen
    if seen == ClockSync.UNSYNCED:
        assert read[1:3] == [0, 2**63 - 1]


def spoil(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("damage", "error", "code"),
    [
        (lambda path: path.unlink(), PageMissing, -1),
        (lambda path: path.write_bytes(b""), PageUnusable, BAD_PAGE),
        (lambda path: path.write_bytes(b"FTCLOCK\0"), PageUnusable, BAD_PAGE),
        (lambda path: os.truncate(path, 20000), PageUnusable, BAD_PAGE),
        (lambda path: os.truncate(path, 30000), PageUnusable, BAD_PAGE),
        (lambda path: spoil(path, 0, b"X"), PageUnusable, BAD_PAGE),
        (lambda path: spoil(path, 8, b"\3\0\0\0"), WrongVersion, VERSION),
        (lambda path: spoil(path, 70, b"corrupt"), PageUnusable, BAD_PAGE),
        (lambda path: spoil(path, 330, b"corrupt"), PageUnusable, BAD_PAGE),
        (lambda path: spoil(path, 330 + 320 + 40, b"corrupt"), PageUnusable, BAD_PAGE),
        (lambda path: (path.unlink(), path.mkdir()), PageUnusable, BAD_PAGE),
        (lambda path: (path.unlink(), os.mkfifo(path)), PageUnusable, BAD_PAGE),
    ],
)
def test_an_invalid_page_is_reported(page, reader, damage, error, code):
    damage(page.path)
    with pytest.raises(error, match=re.escape(str(page.path))):
        Clock(page.path)
    assert reader("now", page.path) == [code]


def test_page_of_another_boot_is_refused(tmp_path, made, reader, monkeypatch):
    """A page that outlived its boot on a disk: the raw clock restarted."""
    monkeypatch.setattr(writer, "boot_id", lambda: b"\1" * 16)
    old = PageFile(tmp_path / "clock", "h1")
    old.write(made.content())
    old.close()
    with pytest.raises(PageUnusable, match="before this machine's last boot"):
        Clock(tmp_path / "clock")
    assert reader("now", tmp_path / "clock") == [OTHER_BOOT]


def test_page_of_another_time_namespace_is_refused(tmp_path, made, reader, monkeypatch):
    if not writer.time_namespace():
        pytest.skip("this kernel has no time namespaces")
    monkeypatch.setattr(writer, "time_namespace", lambda: 1)
    old = PageFile(tmp_path / "clock", "h1")
    old.write(made.content())
    old.close()
    with pytest.raises(PageUnusable, match="another time namespace"):
        Clock(tmp_path / "clock")
    assert reader("now", tmp_path / "clock") == [OTHER_BOOT]


def test_page_is_found_by_environment_and_by_default(page, reader, monkeypatch, tmp_path):
    runtime = tmp_path / "runtime" / "fabrictime"
    runtime.mkdir(parents=True)
    (runtime / "clock").hardlink_to(page.path)
    bare = {key: value for key, value in os.environ.items() if key not in ("FABRICTIME_CLOCK",)}
    for name, value in (("FABRICTIME_CLOCK", page.path), ("XDG_RUNTIME_DIR", runtime.parent)):
        monkeypatch.delenv("FABRICTIME_CLOCK", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(fabrictime_client, "_clock", None)
        assert fabrictime_client.state() == ClockSync.SYNCED
        assert fabrictime_client.now().bound_ns < 1000
        assert fabrictime_client.convert(time.time_ns(), "system").bound_ns < 1000
        assert reader("now", "", env={**bare, "XDG_RUNTIME_DIR": "/none", name: str(value)})[0] == 2
    monkeypatch.setattr(fabrictime_client, "_clock", None)


def test_without_a_page_the_state_is_unsynced_and_now_raises_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(fabrictime_client, "_clock", None)
    monkeypatch.setenv("FABRICTIME_CLOCK", str(tmp_path / "none"))
    assert fabrictime_client.state() == ClockSync.UNSYNCED
    with pytest.raises(PageMissing, match=f"{tmp_path}/none: No such file"):
        fabrictime_client.now()


def test_an_unreadable_page_is_reported(page, monkeypatch):
    def refused(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PageMissing, match="Permission denied"):
        Clock(page.path)


def test_forked_child_reads_on(page, made):
    """Parent and child share the mapping, and the child sees writes after the fork."""
    clock = Clock(page.path)
    clock.now()
    to_child, from_parent = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(from_parent)
            os.read(to_child, 1)
            reading = clock.now()
            code = 0 if abs(reading.time_ns - 5 * S) < 60 * S and clock.status().window == 8 else 2
        finally:
            os._exit(code)
    os.close(to_child)
    page.write(made.content(slewed=SlewedModel(RawClockModel(raw_ns(), 5 * S, 0.0, 1.0, 0.0, 0.0)), window=8))
    os.write(from_parent, b"x")
    os.close(from_parent)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert clock.status().window == 8


def test_shell_gets_a_line_and_an_exit_code(page, made, tmp_path):
    import sys

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fabrictime_client", *map(str, arguments)],
            cwd=made.PYTHON_CLIENT,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run(page.path)
    assert done.returncode == 0
    seconds, bound, state = done.stdout.split()
    assert re.fullmatch(r"\d{10}\.\d{9}", seconds)
    assert (int(bound) < 1000, state) == (True, ClockSync.SYNCED)
    assert '"host": "h1"' in run(page.path, "--json").stdout
    missing = run(tmp_path / "none")
    assert missing.returncode == 1
    assert missing.stderr.startswith(f"fabrictime: {tmp_path}/none: No such file")
    assert run("--bogus").returncode == 2


def test_only_programs_with_flows_import_the_clients_which_import_nothing_of_ours(made):
    for package in ("schemas", "native", "producers", "streams", "actuators", "grafana"):
        for path in Path(made.ROOT, package).rglob("*.py"):
            allowed = any(
                path.is_relative_to(made.ROOT / "producers" / part) for part in ("sim", "collectives")
            )
            assert allowed or "fabrictime_client" not in path.read_text(), path
    for path in made.PYTHON_CLIENT.rglob("*.py"):
        assert not re.search(
            r"^\s*(from|import) (schemas|native|producers|actuators|fabrictime)\b", path.read_text(), re.M
        )
