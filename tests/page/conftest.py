"""History for the page's tests, in process or as a server, filled with rows whose figures are known."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fabrictime.log.server import LogServer
from fabrictime.log.settings import LogSettings
from fabrictime.web.source import ClickHouse
from schemas import codec, tables, topics

SECOND_NS = 1_000_000_000

collect_ignore = [
    name
    for name, wanted in (
        ("test_picture.py", "FABRICTIME_PAGE_PICTURE"), ("test_frame_times.py", "FABRICTIME_PAGE_FRAMES"),
    )
    if not os.environ.get(wanted)
]  # fmt: skip
"""The picture and the measurement are no tests of their own: they are taken where somebody asks for them."""


def _time(ns: int) -> str:
    return f"{ns // SECOND_NS}.{ns % SECOND_NS:09d}"


def _bucket(ns: float) -> int:
    if ns < 1:
        return 0
    exponent = math.floor(math.log2(ns))
    return 4 * exponent + int((ns / 2**exponent - 1) * 4)


class Writer:
    """Writes rows of the history tables through any clickhouse-connect client."""

    def __init__(self, client: Any, database: str = "fabrictime") -> None:
        self.client = client
        self.database = database

    def create(self) -> None:
        for statement in tables.create_all(database=self.database):
            self.client.command(statement)

    def empty(self) -> None:
        for table in tables.TABLES:
            self.client.command(f"TRUNCATE TABLE {self.database}.{table}")

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        block = "\n".join(json.dumps(row) for row in rows)
        names = tables.TABLES[table].column_names
        self.client.raw_insert(f"{self.database}.{table}", names, block, fmt="JSONEachRow")

    def delays(
        self,
        start_ns: int,
        pairs: Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]],
        window_ns: int = SECOND_NS,
    ) -> None:
        """One window: (nic, peer) -> path -> figures; the two p50 fill in the others."""
        rows = []
        for (nic, peer), paths in pairs.items():
            for path, figures in paths.items():
                row: dict[str, Any] = {
                    "nic": nic, "peer": peer, "path": path, "shard": "s0", "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "state": "SYNCED", "count": 100, "lost": 0, "no_t3": 0, "bound_ns": 800.0,
                    "rtt_min_ns": 15_000.0, "rtt_p50_ns": 18_000.0, "rtt_p99_ns": 40_000.0,
                    "recorded_ns": start_ns + window_ns,
                }  # fmt: skip
                for way in ("forward", "reverse"):
                    p50 = figures.get(f"{way}_p50_ns", 9_000.0)
                    row[f"{way}_p50_ns"] = p50
                    known = p50 is not None
                    row[f"{way}_min_ns"] = p50 * 0.8 if known else None
                    row[f"{way}_p99_ns"] = p50 * 2 if known else None
                    row[f"{way}_bucket"] = [_bucket(p50)] if known else []
                    row[f"{way}_bucket_count"] = [figures.get("count", 100)] if known else []
                rows.append({**row, **figures})
        self.insert(tables.DELAYS, rows)

    def clocks(
        self, start_ns: int, clocks: Mapping[str, Mapping[str, Any]], window_ns: int = SECOND_NS
    ) -> None:
        """One window: clock -> figures."""
        self.insert(
            tables.CLOCKS,
            (
                {
                    "shard": "s0", "domain": "s0/0", "clock": clock, "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "log_offset_ns": 0, "solved_ns": start_ns + window_ns + 180_000_000, "at_ns": start_ns,
                    "offset_ns": 0.0, "drift_ppb": 0.0, "bound_ns": 400.0, "state": "SYNCED", "pairs": 10,
                    "residual_ns": 12.5, "recorded_ns": start_ns + window_ns, **figures,
                }
                for clock, figures in clocks.items()
            ),
        )  # fmt: skip

    def suspects(
        self,
        start_ns: int,
        pairs: Mapping[tuple[str, str], Mapping[str, Any]],
        window_ns: int = SECOND_NS,
    ) -> None:
        """One window: (prober, peer) -> figures."""
        self.insert(
            tables.SUSPECTS,
            (
                {
                    "shard": "s0", "domain": "s0/0", "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "prober": prober, "peer": peer, "asymmetry_ns": 300.0, "sigma_ns": 4.0, "weight": 0.05,
                    "recorded_ns": start_ns + window_ns, **figures,
                }
                for (prober, peer), figures in pairs.items()
            ),
        )  # fmt: skip

    def pair_fits(
        self,
        start_ns: int,
        pairs: Iterable[tuple[str, str]],
        window_ns: int = SECOND_NS,
        **figures: Any,
    ) -> None:
        """One window of one source."""
        self.insert(
            tables.PAIR_FITS,
            (
                {
                    "shard": "s0", "source": "fabric.probes/0", "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "prober": prober, "peer": peer, "at_ns": start_ns, "offset_ns": 0.0, "drift_ppb": 0.0,
                    "sigma_ns": 3.0, "drift_sigma_ppb": 2.0, "rtt_min_ns": 9_000.0, "samples": 500,
                    "accepted": 60, "margin_ns": 8_900.0, "noise_ns": 4.0,
                    "recorded_ns": start_ns + window_ns, **figures,
                }
                for prober, peer in pairs
            ),
        )  # fmt: skip

    def pipeline(
        self, start_ns: int, sources: Mapping[str, Mapping[str, Any]], window_ns: int = SECOND_NS
    ) -> None:
        """One window: source -> figures."""
        self.insert(
            tables.PIPELINE,
            (
                {
                    "shard": "s0", "source": source, "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "part": 0, "parts": 1, "first_offset": 0, "next_offset": 10, "lag_messages": 0,
                    "messages": 10, "bytes": 100_000, "samples": 5_000, "late": 0, "rejected": 0,
                    "nics": 1, "pairs": 3, "recorded_ns": start_ns + window_ns, **figures,
                }
                for source, figures in sources.items()
            ),
        )  # fmt: skip

    def nic_windows(
        self, start_ns: int, nics: Mapping[str, Mapping[str, Any]], window_ns: int = SECOND_NS
    ) -> None:
        """One window: NIC -> figures."""
        self.insert(
            tables.NIC_WINDOWS,
            (
                {
                    "shard": "s0", "source": "fabric.probes/0", "window": start_ns // window_ns,
                    "window_start": _time(start_ns), "window_end": _time(start_ns + window_ns),
                    "nic": nic, "clock": f"{nic.split('/')[0]}/system", "run": 7, "batches": 10,
                    "samples": 5_000, "lost": 0, "lost_batches": 0, "restarts": 0, "clock_jump_ns": 0,
                    "clock_ns": start_ns, "system_ns": start_ns, "append_ns": start_ns,
                    "recorded_ns": start_ns + window_ns, **figures,
                }
                for nic, figures in nics.items()
            ),
        )  # fmt: skip

    def nics(self, nics: Mapping[str, Mapping[str, Any]], at_ns: int) -> None:
        """The inventory: NIC -> fields."""
        self.insert(
            tables.NICS,
            (
                {
                    "nic": nic, "host": nic.split("/")[0], "device": nic.split("/")[1], "shard": "s0",
                    "rail": None, "rack": None, "addresses": ["127.0.0.1"], "probe_port": 9319,
                    "clock": f"{nic.split('/')[0]}/system", "stamp": "KERNEL", "speed_bps": None,
                    "mtu_bytes": 1500, "run": 7, "since_ns": at_ns, "announced_ns": at_ns,
                    "capabilities": [], "gone": 0, "recorded_ns": at_ns, **fields,
                }
                for nic, fields in nics.items()
            ),
        )  # fmt: skip

    def rejects(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Refused messages."""
        self.insert(
            tables.REJECTS,
            (
                {
                    "topic": "fabric.probes", "partition": 0, "offset": 0, "append_ns": 0, "reader": "map",
                    "reason": "MALFORMED", "detail": "", "key": "", "size_bytes": 12, "head": "",
                    "recorded_ns": 0, **row,
                }
                for row in rows
            ),
        )  # fmt: skip


class Filled(Writer):
    """The tables in this process's chdb, readable as the page reads them."""

    def __init__(self, path: Path) -> None:
        import clickhouse_connect

        super().__init__(clickhouse_connect.get_client(interface="chdb", path=str(path)))
        self.history = ClickHouse(lambda: self.client, "chdb", self.database)

    def fresh(self) -> None:
        self.client.command(f"DROP DATABASE IF EXISTS {self.database}")
        self.create()


@pytest.fixture(scope="session")
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    filled = Filled(tmp_path_factory.mktemp("chdb"))
    yield filled
    filled.client.close()


@pytest.fixture
def filled(_engine: Filled) -> Filled:
    """Tables without a row."""
    _engine.fresh()
    return _engine


# ------------------------------------------------------------------------------- processes and the browser

HISTORY = """
import sys
from pathlib import Path
from fabrictime.history.server import main
from fabrictime.history.settings import HistorySettings
sys.exit(main(HistorySettings(directory=Path(sys.argv[1]), port=int(sys.argv[2]))))
"""
PAGE = """
import logging, sys
from fabrictime.web.server import main
from fabrictime.web.settings import PageSettings
logging.basicConfig(level=logging.INFO)
sys.exit(main(PageSettings.model_validate_json(sys.argv[1])))
"""
DEADLINE_S = 40.0

T = TypeVar("T")


def until(what: str, ask: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Return the first truthy answer of `ask`; fail with `what` and the last answer after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            pytest.fail(f"not within {deadline_s} s: {what}; last answer {answer!r}")
        time.sleep(0.05)


class Process:
    """A service of ours as a child, its output in a file."""

    def __init__(self, code: str, log: Path, *arguments: str) -> None:
        self.log = log
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                cwd=log.parent,
            )

    def stop(self, sign: int = signal.SIGTERM) -> int:
        if self.child.poll() is None:
            self.child.send_signal(sign)
        return self.child.wait(20)

    def alive(self) -> None:
        assert self.child.poll() is None, self.log.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real history server on a directory, with a writer for any database in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None

    def start(self) -> None:
        self.process = Process(
            HISTORY, self.folder / "history.log", str(self.folder / "data"), str(self.port)
        )
        until("history answers", self._answers)

    def stop(self, sign: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.stop(sign)

    def writer(self, database: str = "fabrictime") -> Writer:
        import clickhouse_connect

        client = clickhouse_connect.get_client(
            host="127.0.0.1",
            port=self.port,
            username="fabrictime",
            password=(self.folder / "data" / "write.token").read_text().strip(),
        )
        return Writer(client, database)

    def _answers(self) -> bool:
        assert self.process is not None
        self.process.alive()
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Page:
    """A live page's process."""

    def __init__(self, folder: Path, server_url: str, token_file: Path | None, **settings: Any) -> None:
        port_file = folder / "page.port"
        given = {
            "port": 0, "history_url": server_url, "refresh_ms": 200, "port_file": str(port_file),
            "stale_after_s": 600.0,
            "history_token_file": str(token_file) if token_file else None, **settings,
        }  # fmt: skip
        self.process = Process(PAGE, folder / "page.log", json.dumps(given))
        self.port = int(until("the page listens", lambda: self._port(port_file)))
        self.url = f"http://127.0.0.1:{self.port}/"

    def _port(self, path: Path) -> str:
        self.process.alive()
        return path.read_text().strip() if path.exists() else ""

    def healthz(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}healthz", timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture(name="until", scope="session")
def _until() -> Callable[..., Any]:
    """Waits for a condition."""
    return until


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Server]:
    """A history server of this test's own."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One history server for the tests that leave it running."""
    server = Server(tmp_path_factory.mktemp("history"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Starts pages that end with the test."""
    pages: list[Page] = []

    def start(server: Server, **settings: Any) -> Page:
        folder = tmp_path / f"page{len(pages)}"
        folder.mkdir()
        pages.append(Page(folder, server.url, server.folder / "data" / "read.token", **settings))
        return pages[-1]

    yield start
    for page in pages:
        page.process.stop()


class Browser:
    """Headless Chromium with one window."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self.driver: Any = self._start()

    def _start(self) -> Any:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self._profile}",
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        return webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))

    def open(self, url: str, dark: bool = True, width: int = 1400, height: int = 900) -> None:
        """Show a page; in a new browser where the one before has died, as it does once in some thousand."""
        from selenium.common.exceptions import InvalidSessionIdException

        try:
            self._open(url, dark, width, height)
        except InvalidSessionIdException as died:
            print(f"browser: {died.msg}; once more in a new one")
            self.driver.quit()
            self.driver = self._start()
            self._open(url, dark, width, height)

    def _open(self, url: str, dark: bool, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")  # the page of the test before complains that its server is gone
        self.driver.get_log("browser")
        self.driver.get(url)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, test: str) -> str:
        return str(
            self.js(
                "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
                "return e && e.offsetParent !== null ? e.innerText : ''",
                test,
            )
        )

    def toggle(self, test: str, option: str) -> None:
        """Press the button of a toggle."""
        self.js(
            "[...document.querySelectorAll(`[data-testid=${arguments[0]}] button`)]"
            ".find((b) => b.innerText.trim() === arguments[1]).click()",
            test,
            option,
        )

    def frames(self, test: str) -> int:
        return int(
            self.js(
                "return document.querySelector(`[data-testid=${arguments[0]}]`)?.dataset.frames ?? 0", test
            )
        )

    def cell(self, nic: str, peer: str) -> dict[str, Any] | None:
        """What the heat map shows for a row and a column."""
        found = self.js(
            "const h = document.querySelector('[data-testid=heat]')?.ft?.drawer;"
            "if (!h?.rows) return null;"
            "const y = h.rows.findIndex((l) => l.text === arguments[0]);"
            "const x = h.cols.findIndex((l) => l.text === arguments[1]);"
            "const shown = h.chart.getOption().series[0].data.find((d) => d[0] === x && d[1] === y);"
            "const cell = h.cells.get(y * h.cols.length + x);"
            "return cell ? {metric: h.metric, value: cell[1], p50: cell[2], p99: cell[3], count: cell[5],"
            " lost: cell[6], bound: cell[7], drawn: shown ? shown[2] : null, x, y} : null",
            nic,
            peer,
        )
        return dict(found) if found else None

    def click_cell(self, nic: str, peer: str) -> None:
        """Click the middle of a cell with the mouse."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.hover_cell(nic, peer)
        ActionChains(self.driver).click().perform()

    def hover_cell(self, nic: str, peer: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        cell = self.cell(nic, peer)
        assert cell is not None
        x, y = self.js(
            "const e = document.querySelector('[data-testid=heat] .ft-canvas');"
            "const b = e.getBoundingClientRect();"
            "const p = e.parentElement.ft.chart.convertToPixel({gridIndex: 0}, [arguments[0], arguments[1]]);"
            "return [b.left + p[0], b.top + p[1]]",
            cell["x"],
            cell["y"],
        )
        chain = ActionChains(self.driver)
        chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        chain.perform()

    def hover_point(self, test: str, series: str, point: int, click: bool = False) -> None:
        """Put the mouse on a data point of a chart's series, and click there."""
        from selenium.webdriver.common.action_chains import ActionChains

        x, y = self.js(
            "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
            "const c = e.querySelector('.ft-canvas');"
            "c.scrollIntoView({block: 'center'});"
            "const b = c.getBoundingClientRect(), chart = e.ft.chart;"
            "const s = chart.getOption().series.find((each) => each.id === arguments[1]);"
            "const p = chart.convertToPixel({gridIndex: 0}, s.data[arguments[2]].value);"
            "return [b.left + p[0], b.top + p[1]]",
            test,
            series,
            point,
        )
        chain = ActionChains(self.driver)
        chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        if click:
            chain.click()
        chain.perform()

    def tip(self, test: str) -> str:
        """The text of a chart's tooltip; '' where none is shown."""
        return str(
            self.js(
                "return [...document.querySelectorAll(`[data-testid=${arguments[0]}] .ft-canvas > div`)]"
                ".filter((e) => e.style.visibility !== 'hidden' && e.style.opacity !== '0')"
                ".map((e) => e.innerText).find((t) => t) || ''",
                test,
            )
        )

    def last(self, test: str) -> Any:
        """The frame that a chart shows."""
        return self.js(
            "return document.querySelector(`[data-testid=${arguments[0]}]`)?.ft?.drawer.last", test
        )

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; skips where it or its driver is missing."""
    for path in (CHROMIUM, CHROMEDRIVER):
        if not os.access(path, os.X_OK):
            pytest.skip(f"{path} is missing (Debian: apt-get install chromium chromium-driver)")
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.driver.quit()


# ------------------------------------------------------------------------------- the log and fabrics on it


class FabricRecords:
    """Records of a leaf-spine fabric as its services would publish them, and a producer for them."""

    def __init__(
        self, bootstrap: str = "", hosts: int = 8, nics: int = 1, leaves: int = 4, spines: int = 4
    ) -> None:
        self.bootstrap = bootstrap
        self.now_ns = time.time_ns()
        self.spines = spines
        per_leaf = -(-hosts // leaves)
        self.nics = [f"h{h + 1}/eth{d + 1}" for h in range(hosts) for d in range(nics)]
        self.leaf_of = {
            f"h{h + 1}/eth{d + 1}": (f"leaf{h // per_leaf * nics + d + 1}", f"swp{h % per_leaf + 1}")
            for h in range(hosts)
            for d in range(nics)
        }
        self.rack_of = {f"h{h + 1}": f"r{h // per_leaf + 1}" for h in range(hosts)}
        self.first_up = per_leaf + 1
        self.leaves = sorted({leaf for leaf, _ in self.leaf_of.values()}, key=lambda leaf: int(leaf[4:]))
        self._seq: dict[str, int] = {}
        self._producer: Any = None

    def up(self, leaf: str, spine: int) -> str:
        """The link from a leaf to a spine, both counted from 1."""
        return f"{leaf}:swp{self.first_up + spine - 1}>spine{spine}:swp{leaf[4:]}"

    @staticmethod
    def back(link: str) -> str:
        near, _, far = link.partition(">")
        return f"{far}>{near}"

    @staticmethod
    def cable(link: str) -> str:
        return "<>".join(sorted(link.split(">")))

    def first(self, nic: str) -> str:
        """The link from a NIC to its leaf."""
        host, _, device = nic.partition("/")
        leaf, port = self.leaf_of[nic]
        return f"{host}:{device}>{leaf}:{port}"

    def links(self) -> list[str]:
        """Every directed link."""
        ups = [self.first(nic) for nic in self.nics]
        ups += [self.up(leaf, spine + 1) for leaf in self.leaves for spine in range(self.spines)]
        return [link for up in ups for link in (up, self.back(up))]

    def hops(self, nic: str, peer: str, spine: int) -> list[str]:
        leaf, far = self.leaf_of[nic][0], self.leaf_of[peer][0]
        middle = [] if leaf == far else [self.up(leaf, spine), self.back(self.up(far, spine))]
        return [self.first(nic), *middle, self.back(self.first(peer))]

    def nic(self, nic: str, **fields: Any) -> dict[str, Any]:
        host, _, device = nic.partition("/")
        return {
            "nic": nic, "host": host, "device": device, "shard": "fabric", "rack": self.rack_of.get(host),
            "rail": None, "addresses": ["10.0.0.1"], "probe_port": 9319,
            "clock": f"{host}/system", "stamp": "KERNEL", "speed_bps": 10**9, "mtu_bytes": 1500, "run": 1,
            "since_ns": 0, "announced_ns": self.now_ns, **fields,
        }  # fmt: skip

    def paths(self, nic: str, peer: str, ports: int = 4, **fields: Any) -> dict[str, Any]:
        """Request port k over spine k, and the answers to the peer's port k over spine k too."""
        return {
            "nic": nic, "peer": peer, "shard": "fabric", "run": 1, "traced_ns": self.now_ns,
            "paths": [
                {
                    "path": 40_000 + k, "leg": leg, "links": self.hops(nic, peer, k % self.spines + 1),
                    "found": "TRACED", "complete": True, "since_ns": self.now_ns, "changes": 0,
                }
                for k in range(ports)
                for leg in ("REQUEST", "ANSWER")
            ],
            **fields,
        }  # fmt: skip

    def health(self, link: str, state: str, **fields: Any) -> dict[str, Any]:
        subject = self.cable(link)
        self._seq[subject] = self._seq.get(subject, 0) + 1
        return {
            "subject": subject, "kind": "LINK", "shard": "fabric", "seq": self._seq[subject], "state": state,
            "before": "UP", "links": [link, self.back(link)], "since_ns": self.now_ns,
            "evaluated_ns": self.now_ns, "flaps_hour": 0, "flaps_total": 0, "detected_by": "PROBES",
            "paths_dead": 4, "paths_living": 0, "probers": 2, "text": f"{link} is {state}", **fields,
        }  # fmt: skip

    def queues(
        self, depths: Mapping[str, Mapping[str, Any]], at_ns: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        at_ns = self.now_ns if at_ns is None else at_ns
        window = at_ns // SECOND_NS
        return {
            "shard": "fabric", "window": window, "part": 0, "parts": 1, "window_start_ns": window * SECOND_NS,
            "slot_ns": SECOND_NS, "slots": 1, "synced": True, "paths": 100, "solved_ns": at_ns,
            "links": [
                {
                    "link": link, "rate_bps": 10**9, "depth_mean_bytes": 0.0, "depth_max_bytes": 0.0,
                    "bound_bytes": 1500.0, "utilisation": 0.05, "utilisation_bound": 0.01,
                    "from_flows": False, "samples": 1000, "group": 0, "slot": [],
                    "depth_bytes": [], **figures,
                }
                for link, figures in depths.items()
            ],
            **fields,
        }  # fmt: skip

    def flow(self, number: int, nic: str, peer: str, spine: int = 1, **fields: Any) -> dict[str, Any]:
        return {
            "flow_id": f"{nic.split('/')[0]}/boot/sock:{number}", "state": "OPEN", "nic": nic, "peer": peer,
            "source_address": "10.0.0.1", "peer_address": "10.0.0.2", "source_port": 50_000 + number,
            "peer_port": 4791, "protocol": "ROCE", "links": self.hops(nic, peer, spine), "job": None,
            "tenant": None, "bytes_total": 10**9, "interval_ns": SECOND_NS, "bytes": 10**7,
            "rate_bps": 8e7, **fields,
        }  # fmt: skip

    def flows(self, host: str, flows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return {
            "host": host, "boot": "boot", "report": 1, "shard": "fabric", "system_ns": self.now_ns,
            "whole": True, "flows": flows, **fields,
        }  # fmt: skip

    def contention(self, link: str, **fields: Any) -> dict[str, Any]:
        opened = fields.pop("opened_ns", self.now_ns - 2 * SECOND_NS)
        return {
            "window_id": f"fabric/{link}/{opened}", "link": link, "shard": "fabric", "update": 0,
            "state": "OPENED", "kind": "COLLISION", "confidence": 0.9, "opened_ns": opened,
            "updated_ns": self.now_ns, "closed_ns": None, "depth_bytes": 90_000.0,
            "depth_peak_bytes": 180_000.0, "delay_ns": 720_000.0, "utilisation": 0.98,
            "over_ns": 2 * SECOND_NS, "over_byte_s": 150_000.0, "rate_bps": 10**9, "flows": [],
            "flows_total": 0, "jobs": [], "links": [], "text": f"{link}: flows collide", **fields,
        }  # fmt: skip

    def contending(self, number: int, nic: str, peer: str, **fields: Any) -> dict[str, Any]:
        return {
            "flow_id": f"{nic.split('/')[0]}/boot/sock:{number}", "job": None, "tenant": None, "nic": nic,
            "peer": peer, "rate_bps": 5e8, "share": 0.5, **fields,
        }  # fmt: skip

    def decision(self, seq: int, flow: Mapping[str, Any], reason: str, **fields: Any) -> dict[str, Any]:
        """The policy's `seq`th decision: that a flow moves from its port to the next one."""
        at_ns = fields.pop("at_ns", self.now_ns)
        kind = fields.pop("kind", "DOWN")
        return {
            "decision_id": f"fabric/7/{seq}", "shard": "fabric", "epoch": 7, "seq": seq, "at_ns": at_ns,
            "host": flow["flow_id"].partition("/")[0], "action": "REROUTE", "flow_id": flow["flow_id"],
            "from_path": flow["source_port"], "to_path": flow["source_port"] + 1, "rate_bps": None,
            "expires_at_ns": at_ns + SECOND_NS, "reason": {"kind": kind, "id": reason},
            "config_version": 1, "signature": b"",
            "text": f"{flow['nic']} to {flow['peer']}: {kind} {reason}", **fields,
        }  # fmt: skip

    @staticmethod
    def action(decision: Mapping[str, Any], outcome: str = "APPLIED", **fields: Any) -> dict[str, Any]:
        """What an actuator made of a decision, 12 ms later."""
        same = ("decision_id", "shard", "epoch", "seq", "host", "flow_id", "action", "from_path", "to_path",
                "rate_bps", "config_version")  # fmt: skip
        return {
            **{name: decision[name] for name in same}, "outcome": outcome,
            "at_ns": decision["at_ns"] + 12_000_000, "took_ns": 3_000_000,
            "how": "SOCKET" if outcome == "APPLIED" else "", "detail": "", **fields,
        }  # fmt: skip

    def rounds(
        self, first: int, held: list[tuple[str, str, str, str]] | None, **fields: Any
    ) -> dict[str, Any]:
        """One round of the policy; `held`: (flow, action, why, reason), None: as before."""
        names = ("flow_id", "action", "cause", "reason")
        told = None if held is None else [dict(zip(names, each, strict=True)) for each in held]
        at_ns = fields.get("at_ns", self.now_ns)
        return {
            "shard": "fabric", "epoch": 7, "first_cycle": first, "at_ns": at_ns, "inputs": [], "flows": 20,
            "movable": 18,
            "cycles": [
                {"now_ns": at_ns, "flows_ns": at_ns, "positions": [], "decisions": 0, "suppressed": told}
            ],
            **fields,
        }  # fmt: skip

    def config(self, version: int = 1, host: str = "*", **fields: Any) -> dict[str, Any]:
        return {
            "host": host, "version": version, "at_ns": self.now_ns, "by": "ann@ops", "mode": "ACT", **fields,
        }  # fmt: skip

    def alert(self, subject: str, text: str, **fields: Any) -> dict[str, Any]:
        kind = fields.get("kind", "LINK_DOWN")
        raised = fields.pop("raised_ns", self.now_ns)
        return {
            "alert_id": f"{kind}:{subject}:{raised}", "subject": subject, "kind": kind, "state": "RAISED",
            "severity": "CRITICAL", "shard": "fabric", "update": 0, "raised_ns": raised,
            "updated_ns": self.now_ns, "cleared_ns": None, "text": text, "links": [], "nics": [], "jobs": [],
            "grouped": [], "evidence": [], **fields,
        }  # fmt: skip

    def fleet(self, peers: int = 0) -> list[tuple[str, str, dict[str, Any]]]:
        """(topic, key, record) of the inventory, and of the paths to that many next peers (0: to all)."""
        made = [("fabric.inventory", nic, self.nic(nic)) for nic in self.nics]
        count = len(self.nics)
        for i, nic in enumerate(self.nics):
            for k in range(1, (peers or count - 1) + 1):
                peer = self.nics[(i + k * (1 if not peers else 37)) % count]
                if peer != nic:
                    made.append(("fabric.paths", f"{nic}>{peer}", self.paths(nic, peer)))
        return made

    def publish(self, *records: tuple[str, str, dict[str, Any] | None]) -> None:
        """Publish (topic, key, record) and wait until the log has them; None: a tombstone."""
        from confluent_kafka import Producer

        if self._producer is None:
            self._producer = Producer(
                {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 0,
                 "log_level": 0, "queue.buffering.max.messages": 1_000_000}
            )  # fmt: skip
        for topic, key, record in records:
            value = None if record is None else codec.encode(topics.TOPICS[topic].record, record)
            self._producer.produce(topic, value, key)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0


@pytest.fixture(scope="session")
def records() -> type[FabricRecords]:
    """Makes records of a fabric."""
    return FabricRecords


@pytest.fixture
def log_address(tmp_path: Path) -> Iterator[str]:
    """An embedded log of this test's own, in a thread of this process; its address."""
    server = LogServer(LogSettings(directory=tmp_path / "log", port=0))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
    yield f"127.0.0.1:{server.port}"
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
