"""A history filled with a minute of a small fleet, and the ClickHouse plugin's macros."""

import re
import time

import pytest

from fabrictime.bench.history import running_server
from schemas import tables, topics
from streams.agents.clickhouse import Writer
from streams.history.rows import Message, rows_of
from streams.history.settings import HistorySinkSettings

NICS = [f"h{number}/eth0" for number in range(4)]
WINDOWS = 60


class UnknownMacro(ValueError):
    pass


def expand(sql, from_s, to_s, interval_s=10, **variables):
    """Expand the plugin's macros and Grafana's variables; anything left over is an error.

    From the plugin's documentation: times become toDateTime(s) or fromUnixTimestamp64Milli(ms), intervals
    toStartOfInterval, never shorter than a second.
    """

    def moment(seconds):
        return f"toDateTime({int(seconds)})"

    def moment_ms(seconds):
        return f"fromUnixTimestamp64Milli({int(seconds * 1000)})"

    start = "toStartOfInterval"
    ms = int(interval_s * 1000)
    macros = {
        "timeFilter": lambda c: f"{c} >= {moment(from_s)} AND {c} <= {moment(to_s)}",
        "timeFilter_ms": lambda c: f"{c} >= {moment_ms(from_s)} AND {c} <= {moment_ms(to_s)}",
        "timeInterval": lambda c: f"{start}(toDateTime({c}), INTERVAL {max(1, int(interval_s))} second)",
        "timeInterval_ms": lambda c: f"{start}(toDateTime64({c}, 3), INTERVAL {max(1, ms)} millisecond)",
        "fromTime": lambda: moment(from_s),
        "toTime": lambda: moment(to_s),
        "fromTime_ms": lambda: moment_ms(from_s),
        "toTime_ms": lambda: moment_ms(to_s),
        "interval_s": lambda: str(max(1, int(interval_s))),
    }

    def macro(found):
        name, argument = found[1], found[2]
        if name not in macros:
            raise UnknownMacro(f"$__{name}: the ClickHouse plugin has no such macro")
        wanted = macros[name].__code__.co_argcount
        if (argument is not None) != bool(wanted):
            raise UnknownMacro(f"$__{name}: takes {wanted} arguments")
        return macros[name](argument) if wanted else macros[name]()

    def variable(found):
        values = variables.get(found[1])
        if values is None or found[2] != "singlequote":
            raise UnknownMacro(f"{found[0]}: no such variable of the dashboard, or not quoted")
        return ",".join("'" + value.replace("'", "''") + "'" for value in values)

    out = re.sub(r"\$__(\w+)(?:\(([\w.]+)\))?", macro, sql)
    out = re.sub(r"\$\{(\w+)(?::(\w+))?\}", variable, out)
    if "$" in out:
        raise UnknownMacro(f"{out[out.index('$') : out.index('$') + 30]!r}: not expanded")
    return out


@pytest.fixture(scope="session")
def expand_macros():
    expand.unknown = UnknownMacro
    return expand


@pytest.fixture(scope="session")
def filled_history():
    """(reader's client, from, to): a minute of 4 NICs with 2 paths a pair, and all else."""
    with running_server() as server:
        settings = HistorySinkSettings(url=server.url, password_file=server.directory / "write.token")
        writer = Writer(settings)
        end_s = int(time.time()) - 5
        for topic, messages in _records(end_s).items():
            for table, block in rows_of(topic, messages).items():
                writer.insert(table, block, f"{topic}/{table}")
        writer.close()
        client = server.client("reader")
        yield client, end_s - WINDOWS - 5, end_s + 5
        client.close()


def _records(end_s):
    made = {topic.name: [] for topic in topics.TOPICS.values() if topic is not topics.PROBES}
    for window in range(end_s - WINDOWS, end_s):
        start_ns = window * 10**9
        common = {"shard": "s0", "window": window, "part": 0, "parts": 1, "window_start_ns": start_ns,
                  "window_end_ns": start_ns + 10**9}  # fmt: skip
        published_ns = start_ns + 1_200_000_000
        for number, nic in enumerate(NICS):
            paths = [
                {"peer": peer, "path": 33434 + path, "count": 10, "lost": int(window % 10 == 0), "no_t3": 0,
                 **{f"{kind}_{level}_ns": 9_000.0 + 500 * number for kind in ("forward", "reverse", "rtt")
                    for level in ("min", "p50", "p99")},
                 "bound_ns": 80.0, "forward_bucket": [52 + number], "forward_bucket_count": [10],
                 "reverse_bucket": [52], "reverse_bucket_count": [10]}
                for peer in NICS if peer != nic for path in range(2)
            ]  # fmt: skip
            record = {**common, "nic": nic, "state": "SYNCED", "paths": paths}
            made[topics.DELAYS.name].append(Message(record, nic, published_ns))
        clocks = [
            {"clock": f"h{number}/system", "at_ns": start_ns, "offset_ns": 1e6 * number + window % 7,
             "drift_ppb": 10.0 * number, "bound_ns": 90.0, "state": "SYNCED", "pairs": 3, "residual_ns": 12.0}
            for number in range(4)
        ]  # fmt: skip
        offsets = {**common, "domain": "d0", "log_offset_ns": 0, "solved_ns": published_ns, "clocks": clocks}
        made[topics.CLOCK_OFFSETS.name].append(Message(offsets, "s0/0", published_ns))
        nics = [
            {"nic": nic, "clock": f"{nic[:2]}/system", "run": 1, "batches": 10, "last_batch": 1,
             "samples": 60,
             "lost": 0, "lost_batches": 0, "restarts": 0, "clock_jump_ns": 0, "clock_ns": start_ns,
             "system_ns": start_ns, "append_ns": start_ns}
            for nic in NICS
        ]  # fmt: skip
        fits = {**common, "source": "fabric.probes/0", "first_offset": 0, "next_offset": 40,
                "lag_messages": 3,
                "messages": 40, "bytes": 4000, "samples": 240, "late": 1, "rejected": 0, "nics": nics,
                "pairs": []}  # fmt: skip
        made[topics.CLOCK_FITS.name].append(Message(fits, "s0", published_ns))
    reject = {"topic": "fabric.probes", "partition": 0, "offset": 9, "append_ns": end_s * 10**9,
              "reader": "map",
              "reason": "TRUNCATED", "detail": "cut", "key": b"k", "size_bytes": 1, "head": b"h"}  # fmt: skip
    made[topics.REJECTS.name].append(Message(reject, "fabric.probes", end_s * 10**9))
    nic = {"nic": NICS[0], "host": "h0", "device": "eth0", "shard": "s0", "rail": None, "rack": None,
           "addresses": [], "probe_port": 0, "clock": "h0/system", "stamp": "KERNEL", "speed_bps": None,
           "mtu_bytes": None, "run": 1, "since_ns": 1, "announced_ns": 1, "capabilities": []}  # fmt: skip
    made[topics.INVENTORY.name].append(Message(nic, NICS[0], end_s * 10**9))
    assert set(tables.TABLES)
    return made
