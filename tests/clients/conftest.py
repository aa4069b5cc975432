"""Pages with known content, and the readers: the C header and the Python package."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actuators.clock.page import ClockRow, Content, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from native.core.hostclock import raw_ns
from schemas.records import ClockSync

ROOT = Path(__file__).resolve().parents[2]
PYTHON_CLIENT = ROOT / "clients" / "python"
HEADER = ROOT / "clients" / "c"

S = 1_000_000_000


def content(state: str = ClockSync.SYNCED, **given: Any) -> Content:
    """A valid page: fabric time is the system clock, with a bound of 50 ns that grows by 20 ns/s."""
    now_ns, fabric_ns = raw_ns(), time.time_ns()
    model = RawClockModel(now_ns, fabric_ns, 0.0, 50.0, 20.0, 1.0)
    row = ClockRow(ClockSync.SYNCED, fabric_ns, -1_000_000, 100.0, 70.0, 10.0, 1.0, offset_fraction_ns=-0.25)
    made = Content(
        state,
        SlewedModel(model),
        now_ns + 10 * S,
        now_ns + 60 * S,
        now_ns + 3 * S,
        now_ns,
        0,
        7,
        "h1/eth0",
        "ptp0",
        10_000,
        60_000,
        {"ptp0": row, "system": replace(row, offset_ns=0, offset_fraction_ns=0.0, drift_ppb=0.0)},
        {"eth0": "ptp0", "eth1": "ptp0", "eth2": "system"},
    )
    return replace(made, **given)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[PageFile]:
    """A page of host h1, written once with `content()`."""
    made = PageFile(tmp_path / "clock", "h1")
    made.write(content())
    yield made
    made.close()


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler here: cc, gcc and clang are missing")
    return found


@pytest.fixture(scope="session")
def reader(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[int]]:
    """Run the C reader; return the numbers that it printed."""
    program = tmp_path_factory.mktemp("reader") / "reader"
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I",
            HEADER,
            Path(__file__).with_name("reader.c"),
            "-o",
            program,
        ],
        check=True,
    )

    def run(*arguments: Any, env: dict[str, str] | None = None) -> list[int]:
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=env, check=False
        )
        assert done.returncode == 0, f"{arguments}: ended with {done.returncode}: {done.stderr}"
        return [int(field) for field in done.stdout.split()]

    run.program = program  # type: ignore[attr-defined]
    return run


def run_source(compiler: str, folder: Path, text: str, dialect: str, level: str = "-O2") -> None:
    """Compile a program with the headers, without a warning, and run it."""
    if "++" in dialect:
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++") or ""
        if not compiler:
            pytest.skip("no C++ compiler here: c++, g++ and clang++ are missing")
    source = folder / ("main.cc" if "++" in dialect else "main.c")
    source.write_text(text)
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    command = [compiler, f"-std={dialect}", level, *warnings, "-I", HEADER, source, "-o", folder / "main"]
    subprocess.run(command, check=True)
    assert subprocess.run([folder / "main"], check=False).returncode == 0


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    return SimpleNamespace(
        content=content, ROOT=ROOT, PYTHON_CLIENT=PYTHON_CLIENT, HEADER=HEADER, run_source=run_source
    )
