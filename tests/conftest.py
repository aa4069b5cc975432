"""For all tests: the programs that they start end by SIGINT, in a shell's background too; no example of a
property test has a deadline, because the machine may be busy; the duration of each test is kept."""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings

from fabrictime.testbed.processes.child import run_inside
from fabrictime.testbed.processes.userns import namespaces_allowed
from tests.examples import IS_FULL, QUICK_EXAMPLES
from tests.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parent.parent
DURATIONS: Final = ROOT / "build" / "test-durations.tsv"
"""s of each test when it last ran, the longest first: `make test` has two runs."""
SLOW_S: Final = 20.0
"""A test above this has the marker `slow` with its reason, or one of those that imply it."""
SHOWN: Final = 15
IMPLY_SLOW: Final = ("slow", "pipeline", "rdma")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell starts with `&` inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("busy"), max_examples=QUICK_EXAMPLES)
settings.load_profile("busy" if IS_FULL else "quick")


class Durations:
    """Keeps and prints the durations of a run's tests, set-up and tear-down included."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._marked: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if any(name in report.keywords for name in IMPLY_SLOW):
            self._marked.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        longest = sorted(self._seconds.items(), key=lambda item: -item[1])
        DURATIONS.parent.mkdir(exist_ok=True)
        self._keep()
        shown = [item for item in longest[:SHOWN] if item[1] >= 1.0]
        if not shown:
            return
        terminalreporter.section(f"{len(longest)} tests, {sum(self._seconds.values()):.0f} s, the longest")
        for name, seconds in shown:
            note = "  above 20 s without the marker slow" * (seconds > SLOW_S and name not in self._marked)
            terminalreporter.line(f"{seconds:6.1f} s  {name}{note}")

    def _keep(self) -> None:
        """Write the durations to the file, beside those of the tests that did not run now."""
        lines = DURATIONS.read_text().splitlines() if DURATIONS.exists() else []
        earlier = {name: float(seconds) for seconds, name in (line.split("\t", 1) for line in lines)}
        kept = {name: s for name, s in earlier.items() if (ROOT / name.partition("::")[0]).exists()}
        longest = sorted({**kept, **self._seconds}.items(), key=lambda item: -item[1])
        DURATIONS.write_text("".join(f"{seconds:.2f}\t{name}\n" for name, seconds in longest))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # else a worker of xdist, whose reports its parent gets
        config.pluginmanager.register(Durations(), "durations")
        if config.getoption("numprocesses", None) and not sys.dont_write_bytecode:
            _compile_tests(config)


def _compile_tests(config: pytest.Config) -> None:
    """Compile new test modules once: else all workers compile all of them at the same time."""
    pycs = {
        path: rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        for pattern in ("test_*.py", "conftest.py")
        for path in (ROOT / "tests").rglob(pattern)
    }
    missing = [path for path, pyc in pycs.items() if not pyc.exists()]
    count = os.cpu_count() or 1

    def compile_part(part: int) -> None:
        for path in missing[part::count]:
            source_hash, code = rewrite._rewrite_test(path, config)
            pycs[path].parent.mkdir(exist_ok=True)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, pycs[path])

    children = [get_context("fork").Process(target=compile_part, args=(part,)) for part in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections, which then do not visit modules and tests either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    """Return the function that waits for a condition."""
    return wait_until


@pytest.fixture(scope="session")
def denied() -> str | None:
    """Return why this user may not make namespaces, else None."""
    return namespaces_allowed()


@pytest.fixture
def inside(denied: str | None) -> Callable[..., Any]:
    """Return a function that runs a test body inside namespaces and returns what it returns."""
    if denied is not None:
        pytest.skip(denied)
    return run_inside
