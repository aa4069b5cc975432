"""Measures history: inserts of path delays through the HTTP endpoint, heat maps and series of 100M rows.

It needs free disk (about 60 bytes per row) and a few minutes. The figures are rows per second as the sink
inserts them, rollup included, and the median time of the queries of the page and Grafana, over HTTP and with
FINAL. The server makes the rows itself: 100 NICs with 10 peers and 4 paths each, one window a second, delays
as on a busy fabric.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Target, Value
from fabrictime.bench._waiting import end_child, wait_for
from schemas import codec, tables

NAME: Final = "history"
TARGETS: Final = {
    "rows_per_second": Target("rows/s", ">=", 500_000),
    "heatmap_60s_1000_pairs_rollup_ms": Target("ms", "<=", 100),
    "heatmap_60s_1000_pairs_base_ms": Target("ms", "<=", 300),
    "pair_series_5min_rollup_ms": Target("ms"),
    "pair_series_5min_base_ms": Target("ms"),
    "stored_rows": Target("rows"),
    "base_bytes_per_row": Target("B"),
    "rollup_bytes_per_row": Target("B"),
    "sink_rows_per_second": Target("rows/s"),
    "server_memory_mib": Target("MiB"),
}

NICS: Final = 100
PEERS: Final = 10
PATHS: Final = 4
PAIRS: Final = NICS * PEERS
ROWS_PER_WINDOW: Final = PAIRS * PATHS
ROWS: Final = 100_000_000
QUICK_ROWS: Final = 2_000_000
BLOCK_WINDOWS: Final = 25
WRITERS: Final = 2
FILL_WINDOWS: Final = 512
"""Number of windows that one filling statement inserts: 2,048,000 rows, which the server splits only between
whole (nic, peer, window)."""

HISTOGRAM: Final = (1, 3, 11, 29, 40, 24, 9, 3, 1)
"""Number of samples in each bucket from the lowest delay on; 121 samples per path and window."""

START_S: Final = 60.0


@dataclass(frozen=True)
class Server:
    """A history server that the bench started."""

    process: subprocess.Popen[str]
    url: str
    directory: Path

    def client(self, user: str = "fabrictime") -> Any:
        """Return a clickhouse-connect client that is logged in as `user`, the writer or the reader."""
        import clickhouse_connect

        kind = "write" if user == "fabrictime" else "read"
        password = (self.directory / f"{kind}.token").read_text(encoding="utf-8").strip()
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return clickhouse_connect.get_client(
            host=host,
            port=int(port),
            username=user,
            password=password,
            autogenerate_session_id=False,
            send_receive_timeout=600,
            compress=False,
        )

    def memory_mib(self) -> float:
        """Resident memory of the server, MiB."""
        import psutil

        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20


@contextmanager
def running_server(parent: Path | None = None) -> Iterator[Server]:
    """Run a history server on a temporary directory, below `parent` if given."""
    folder = Path(tempfile.mkdtemp(prefix="fabrictime-bench-history-", dir=parent))
    settings = {
        "directory": str(folder / "history"),
        "port": 0,
        "memory_limit_mib": 4096,
        "query_memory_limit_mib": 3072,
    }
    code = (
        "import sys; from fabrictime.history.server import main; "
        "from fabrictime.history.settings import HistorySettings; "
        "sys.exit(main(HistorySettings.model_validate_json(sys.argv[1])))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lock = folder / "history" / "lock"

        def is_ready() -> bool:
            return lock.exists() and lock.read_text().endswith(")")

        in_time = wait_for(lambda: process.poll() is not None or is_ready(), START_S, poll_s=0.02)
        if process.poll() is not None:
            raise RuntimeError(f"history server ended: {process.stderr.read() if process.stderr else ''}")
        if in_time is None:
            raise RuntimeError(f"history server: not ready within {START_S:.0f} s")
        address = lock.read_text().rpartition(" on ")[2].rstrip(")")
        yield Server(process, f"http://{address}", folder / "history")
    finally:
        end_child(process, signal.SIGTERM, 60)
        if process.stderr:
            process.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key. `quick` stores 2M rows instead of 100M, and notes say so."""
    figures: dict[str, Value] = {}
    with running_server() as server:
        progress("inserting path delays as the sink does")
        figures |= _insert(server, quick)
        client = server.client()
        for table in (tables.DELAYS, tables.DELAYS_1S):
            client.command(f"TRUNCATE TABLE {tables.DATABASE}.{table}")
        rows = QUICK_ROWS if quick else ROWS
        needed, free = rows * 120, shutil.disk_usage(server.directory).free
        if free < needed:
            reason = f"{free // 2**30} GiB free in {server.directory}, expected {needed // 2**30} GiB"
            figures |= {key: Missing(reason) for key in TARGETS if key not in figures}
            return figures
        end_s = _fill(server, rows, progress)
        figures |= _query(server, end_s, quick, progress)
        figures["server_memory_mib"] = server.memory_mib()
        client.close()
    return figures


def _select(first_window: int, windows: int) -> str:
    """Return SQL that makes the rows of `windows` windows from `first_window` on.

    Within each window, the rows are in the order of the sorting key.
    """
    shape = ", ".join(map(str, HISTOGRAM))
    first, second, third = (f"cityHash64(number, {seed})" for seed in (1, 2, 3))
    # A path's least delay lies between 4 and 10 us, by pair and path; a tenth of the windows queue more.
    floor = f"toUInt16(48 + cityHash64(pair, path, 7) % 6 + ({first} % 10 = 0))"
    figures = {
        "forward_min_ns": f"low + {first} % 400",
        "forward_p50_ns": f"low * 1.9 + {first} % 900",
        "forward_p99_ns": f"low * 3.2 + {second} % 3000",
        "reverse_min_ns": f"low + {third} % 400",
        "reverse_p50_ns": f"low * 1.9 + {second} % 900",
        "reverse_p99_ns": f"low * 3.2 + {third} % 3000",
        "rtt_min_ns": f"low * 2 + {third} % 700",
        "rtt_p50_ns": f"low * 3.8 + {first} % 1500",
        "rtt_p99_ns": f"low * 6 + {second} % 6000",
        "bound_ns": f"60 + {second} % 40",
    }
    values = {
        "nic": f"concat('h', toString(intDiv(pair, {PEERS})), '/eth0')",
        "peer": f"concat('h', toString((intDiv(pair, {PEERS}) + 1 + pair % {PEERS} * 9) % {NICS}), '/eth0')",
        "path": "toUInt32(33434 + path)",
        "shard": "'s0'",
        "window": "at",
        "window_start": "fromUnixTimestamp64Nano(at * 1000000000, 'UTC')",
        "window_end": "fromUnixTimestamp64Nano((at + 1) * 1000000000, 'UTC')",
        "part": "toUInt32(0)",
        "state": "'SYNCED'",
        "count": f"toUInt32({sum(HISTOGRAM)})",
        "lost": f"toUInt32({first} % 500 = 0)",
        "no_t3": "toUInt32(0)",
        "dscp": "toUInt8(0)",
        "ecn": f"toUInt32({sum(HISTOGRAM)})",
        "forward_ce": "toUInt32(0)",
        "reverse_ce": "toUInt32(0)",
        **{name: f"toFloat32({value})" for name, value in figures.items()},
        "forward_bucket": f"range(floor, toUInt16(floor + {len(HISTOGRAM)}))",
        "forward_bucket_count": f"arrayMap(c -> toUInt32(c + bitAnd({first}, c)), [{shape}])",
        "reverse_bucket": f"range(floor, toUInt16(floor + {len(HISTOGRAM)}))",
        "reverse_bucket_count": f"arrayMap(c -> toUInt32(c + bitAnd({second}, c)), [{shape}])",
        "recorded_ns": "(at + 1) * 1000000000",
    }
    columns = ", ".join(f"{values[name]} AS c_{name}" for name in tables.TABLES[tables.DELAYS].column_names)
    return (
        f"SELECT {columns} FROM (SELECT number, intDiv(number, {ROWS_PER_WINDOW}) + {first_window} AS at, "
        f"intDiv(number, {PATHS}) % {PAIRS} AS pair, number % {PATHS} AS path, {floor} AS floor, "
        f"{tables.bucket_edge_sql('floor')} AS low FROM numbers({windows * ROWS_PER_WINDOW}))"
    )


def _insert(server: Server, quick: bool) -> dict[str, Value]:
    """Send blocks of 100,000 rows over two connections, like the sinks of two workers; return the figures."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from streams.history.clickhouse import Writer
    from streams.runtime.history_settings import HistorySinkSettings

    settings = HistorySinkSettings(url=server.url, password_file=server.directory / "write.token")
    client = server.client()
    start = int(time.time()) - 3600
    block = client.query_arrow(_select(start, BLOCK_WINDOWS))
    block = block.rename_columns(list(tables.TABLES[tables.DELAYS].column_names))
    writers = [Writer(settings) for _ in range(WRITERS)]
    for number, writer in enumerate(writers):
        writer.insert(tables.DELAYS, block, f"warm/{number}")

    def moved(by: int) -> Any:
        """Return the block with all times moved later by `by` windows."""
        shift = pa.scalar(by, pa.int64())
        changed = {
            "window": pc.add(block["window"], shift),
            **{
                name: pc.add(block[name], pa.scalar(by * 10**9, pa.duration("ns")))
                for name in ("window_start", "window_end")
            },
        }
        columns = [changed.get(name, block[name]) for name in block.column_names]
        return pa.table(columns, names=block.column_names)

    seconds = 2.0 if quick else 10.0
    blocks = [moved((1 + number) * BLOCK_WINDOWS) for number in range(12)]
    end = time.perf_counter() + seconds

    def send(writer: Writer, number: int) -> int:
        sent = 0
        while time.perf_counter() < end:
            next_block = blocks[(sent * WRITERS + number) % len(blocks)]
            writer.insert(tables.DELAYS, next_block, f"bench/{number}/{sent}")
            sent += 1
        return sent * int(block.num_rows)

    begun = time.perf_counter()
    with ThreadPoolExecutor(WRITERS) as pool:
        rows = sum(pool.map(send, writers, range(WRITERS)))
    took_s = time.perf_counter() - begun
    for writer in writers:
        writer.close()
    client.close()
    note = f"Arrow blocks of {block.num_rows} rows, {WRITERS} connections, base and rollup, {took_s:.0f} s"
    return {
        "rows_per_second": Figure(rows / took_s, "rows/s", note),
        "sink_rows_per_second": Figure(
            _sink_rows_per_second(),
            "rows/s",
            "messages decoded and checked into columns, one core, no insert",
        ),
    }


def _sink_rows_per_second() -> float:
    """Return the rows per second for which a sink makes columns, with 40 rows and 9 buckets a message."""
    from schemas.kafka.message import Message
    from schemas.topics import DELAYS
    from streams.history.rows import rows_of

    now_ns = time.time_ns()
    record = path_delays(now_ns)
    messages = [codec.encode("PathDelays", {**record, "nic": f"h{nic}/eth0"}) for nic in range(NICS)]
    best = 0.0
    for _ in range(4):
        begun = time.perf_counter()
        decoded = [
            Message(now_ns, DELAYS.name, 0, 0, "", None, codec.decode(message, "PathDelays"))
            for message in messages
        ]
        columns = rows_of(DELAYS.name, decoded)[tables.DELAYS]
        best = max(best, columns.num_rows / (time.perf_counter() - begun))
    return best


def path_delays(now_ns: int) -> dict[str, Any]:
    """Return a `PathDelays` record of 40 paths with 9 buckets a direction, without the name of its NIC."""
    path = {
        "count": sum(HISTOGRAM),
        "lost": 0,
        "no_t3": 0,
        "dscp": 0,
        "ecn": sum(HISTOGRAM),
        "forward_ce": 0,
        "reverse_ce": 0,
        "bound_ns": 60.0,
        **{
            f"{kind}_{level}_ns": 10_000.5
            for kind in ("forward", "reverse", "rtt")
            for level in ("min", "p50", "p99")
        },
        **{f"{route}_bucket": list(range(48, 48 + len(HISTOGRAM))) for route in tables.DIRECTIONS},
        **{f"{route}_bucket_count": list(HISTOGRAM) for route in tables.DIRECTIONS},
    }
    paths = [
        {"peer": f"h{peer}/eth0", "path": 33434 + route, **path}
        for peer in range(PEERS)
        for route in range(PATHS)
    ]
    return {
        "nic": "",
        "shard": "s0",
        "window": 0,
        "part": 0,
        "parts": 1,
        "window_start_ns": now_ns,
        "window_end_ns": now_ns + 10**9,
        "state": "SYNCED",
        "paths": paths,
    }


def _fill(server: Server, rows: int, progress: Progress) -> int:
    """Store `rows` rows, of which the newest end now; return the last window's end, s since the epoch."""
    windows = rows // ROWS_PER_WINDOW
    end_s = int(time.time())
    columns = ", ".join(tables.TABLES[tables.DELAYS].column_names)
    settings = {
        "max_threads": 1,
        "max_insert_threads": 1,
        "max_block_size": 16 * ROWS_PER_WINDOW,
        "min_insert_block_size_rows": FILL_WINDOWS * ROWS_PER_WINDOW // 4,
        "min_insert_block_size_bytes": 0,
        "insert_deduplicate": 0,
        "optimize_on_insert": 0,
    }
    client = server.client()
    starts = range(end_s - windows, end_s, FILL_WINDOWS)
    done = 0

    def fill(first: int) -> int:
        count = min(FILL_WINDOWS, end_s - first)
        client.command(
            f"INSERT INTO {tables.DATABASE}.{tables.DELAYS} ({columns}) {_select(first, count)}",
            settings=settings,
        )
        return count * ROWS_PER_WINDOW

    with ThreadPoolExecutor(WRITERS) as pool:
        for stored in pool.map(fill, starts):
            done += stored
            progress(f"storing rows: {done / 1e6:.0f} of {rows / 1e6:.0f} million")
    client.close()
    return end_s


def _heatmap(table: str, end_s: int) -> str:
    return (
        f"SELECT nic, peer, {tables.quantile_sql(0.99, 'm')} AS p99_ns FROM (SELECT nic, peer, "
        f"{tables.merged_sql('forward')} AS m FROM {tables.DATABASE}.{table} FINAL "
        f"WHERE window_start >= toDateTime64({end_s - 60}, 9, 'UTC') GROUP BY nic, peer)"
    )


def _series(table: str, end_s: int) -> str:
    return (
        f"SELECT at, {tables.quantile_sql(0.99, 'm')} AS p99_ns "
        f"FROM (SELECT toStartOfSecond(window_start) AS at, {tables.merged_sql('forward')} AS m "
        f"FROM {tables.DATABASE}.{table} FINAL "
        f"WHERE window_start >= toDateTime64({end_s - 300}, 9, 'UTC') AND nic = 'h7/eth0' "
        f"AND peer = 'h8/eth0' "
        "GROUP BY at) ORDER BY at"
    )


def _query(server: Server, end_s: int, quick: bool, progress: Progress) -> dict[str, Value]:
    client = server.client("reader")
    one: Callable[[str], Any] = lambda sql: client.query(sql).result_rows[0][0]  # noqa: E731
    sizes = dict(
        client.query(
            "SELECT table, sum(data_compressed_bytes) / sum(rows) FROM system.parts "
            f"WHERE active AND database = '{tables.DATABASE}' GROUP BY table HAVING sum(rows) > 0"
        ).result_rows
    )
    stored = int(one(f"SELECT count() FROM {tables.DATABASE}.{tables.DELAYS}"))
    figures: dict[str, Value] = {
        "stored_rows": Figure(stored, "rows", "quick: fewer than the bench asks for" if quick else None),
        "base_bytes_per_row": float(sizes[tables.DELAYS]),
        "rollup_bytes_per_row": float(sizes[tables.DELAYS_1S]),
    }
    repeats = 10 if quick else 40
    for key, sql, expected in (
        ("heatmap_60s_1000_pairs_rollup_ms", _heatmap(tables.DELAYS_1S, end_s), PAIRS),
        ("heatmap_60s_1000_pairs_base_ms", _heatmap(tables.DELAYS, end_s), PAIRS),
        ("pair_series_5min_rollup_ms", _series(tables.DELAYS_1S, end_s), 300),
        ("pair_series_5min_base_ms", _series(tables.DELAYS, end_s), 300),
    ):
        progress(f"asking: {key}")
        took_ms = []
        for repeat in range(repeats + 2):
            begun = time.perf_counter()
            got = len(client.query(sql).result_rows)
            if got != expected:
                raise RuntimeError(f"{key}: {got} rows, expected {expected}")
            if repeat >= 2:
                took_ms.append((time.perf_counter() - begun) * 1e3)
        note = f"p50 of {repeats} over HTTP, {stored / 1e6:.0f}M rows stored, the first two not counted"
        figures[key] = Figure(statistics.median(took_ms), "ms", note)
    client.close()
    return figures
