"""Measures the size of an agent: its installation, its start and its memory.

The installation is this package without sources, tests and caches, and the packages that it needs without any
extra. The memory is that of the largest prober of a running `fabrictime up` between loopback addresses.
"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, up_in_folder
from fabrictime.runtime import status

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGES: Final = ("schemas", "native", "producers", "streams", "actuators", "grafana", "fabrictime")
SOURCES: Final = frozenset((".pyx", ".pxd", ".c", ".h", ".txt", ".pyc"))
"""Suffixes of files that a wheel lacks, or that Python writes later."""
AGENT: Final = "import fabrictime.commands.cli, producers.probe.service"
RUNS, QUICK_RUNS = 9, 3
SETTLE_S: Final = 10.0
SETTINGS: Final = "[up]\nweb = false\nclock_pages = false\n"
MB: Final = 1e6


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in half a minute."""
    own, others = _own_bytes(), {name: install_bytes(name) for name in sorted(needed(_requirements()))}
    largest = sorted(others, key=lambda name: -others[name])[:3]
    starts = [_import_s() for _ in range(QUICK_RUNS if quick else RUNS)]
    took_s, used_s = (statistics.median(durations) for durations in zip(*starts, strict=True))
    progress(f"agent: {len(others)} packages, {', '.join(largest)} the largest")
    rss: Value
    try:
        rss = Figure(_rss_mb(), note="the largest prober, between loopback addresses")
    except CannotRun as reason:
        rss = Missing(str(reason))
    return {
        "agent_install_mb": Figure(
            (own + sum(others.values())) / MB,
            note=f"{own / MB:.0f} MB of it ours; {', '.join(f'{n} {others[n] / MB:.0f}' for n in largest)}",
        ),
        "agent_import_s": Figure(took_s, note=f"interpreter included; {used_s:.2f} s of a processor"),
        "agent_rss_mb": rss,
    }


def _requirements() -> list[str]:
    """Return the requirements without extras of the installed package or, if none, of this checkout."""
    try:
        requirements = metadata.requires("fabrictime")
    except metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        requirements = project["dependencies"]
    return requirements or []


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the installed packages that the given requirements need, directly or through other packages.

    Requirements of an extra, and packages that are not installed on this platform, are left out.
    """
    packages: set[str] = set()
    waiting = list(_names(requirements))
    while waiting:
        name = waiting.pop()
        if name in packages:
            continue
        try:
            further = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        packages.add(name)
        waiting += _names(further)
    return packages


def _names(requirements: Iterable[str]) -> Iterator[str]:
    for requirement in requirements:
        match = re.match(r"[\w.-]+", requirement)
        if match is not None and not re.search(r";.*\bextra\b", requirement):
            yield re.sub(r"[-_.]+", "-", match[0]).lower()


def install_bytes(name: str) -> int:
    """Return the bytes of an installed package's files, without caches."""
    files = metadata.files(name) or []
    paths = {Path(str(file.locate())) for file in files if file.suffix != ".pyc"}
    return sum(path.stat().st_size for path in paths if path.is_file())


def _own_bytes() -> int:
    paths = (path for name in PACKAGES for path in (ROOT / name).rglob("*"))
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix not in SOURCES)


def _import_s() -> tuple[float, float]:
    """Return the time and processor time, s, that a new process needs to import agent and command line."""
    begin_s, before_s = time.perf_counter(), _children_s()
    subprocess.run([sys.executable, "-c", AGENT], check=True, cwd=ROOT)
    return time.perf_counter() - begin_s, _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rss_mb() -> float:
    """Return the resident memory, MB, of the largest prober. Raises CannotRun."""
    with up_in_folder(SETTINGS, "--fleet", "loopback", "--for", "5m") as (_, data):
        time.sleep(SETTLE_S)
        rows = [row for row in status.read(data)["children"] if row["name"].startswith("prober")]
        used = [psutil.Process(int(row["pid"])).memory_info().rss for row in rows if row["pid"]]
    if not used:
        raise CannotRun("no prober is running")
    return float(max(used)) / MB
