"""A history filled with a minute of a small fleet, and the ClickHouse plugin's macros."""

import re
import time
from types import SimpleNamespace

import pytest

from fabrictime.bench.history import running_server
from grafana import build
from schemas import codec, tables, topics
from schemas.kafka.message import Message
from streams.history.clickhouse import Writer
from streams.history.rows import rows_of
from streams.runtime.history_settings import HistorySinkSettings
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords
from tests.records import make

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
def dashboards(tmp_path_factory):
    """A folder with the built dashboards."""
    folder = tmp_path_factory.mktemp("dashboards")
    build.main([str(folder)])
    return folder


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
    made = {topic.name: [] for topic in topics.TOPICS.values() if "sink" in topic.readers}

    def put(topic, append_ns, key, record):
        made[topic.name].append(Message(append_ns, topic.name, 0, 0, key, None, record))

    for window in range(end_s - WINDOWS, end_s):
        start_ns = window * 10**9
        common = {
            "shard": "s0",
            "window": window,
            "part": 0,
            "parts": 1,
            "window_start_ns": start_ns,
            "window_end_ns": start_ns + 10**9,
        }
        published_ns = start_ns + 1_200_000_000
        for number, nic in enumerate(NICS):
            paths = [
                {
                    "peer": peer,
                    "path": 33434 + path,
                    "count": 10,
                    "lost": int(window % 10 == 0),
                    "no_t3": 0,
                    "dscp": 0,
                    "ecn": 10,
                    "forward_ce": 1,
                    "reverse_ce": 0,
                    **{
                        f"{kind}_{level}_ns": 9_000.0 + 500 * number
                        for kind in ("forward", "reverse", "rtt")
                        for level in ("min", "p50", "p99")
                    },
                    "bound_ns": 80.0,
                    "forward_bucket": [52 + number],
                    "forward_bucket_count": [10],
                    "reverse_bucket": [52],
                    "reverse_bucket_count": [10],
                }
                for peer in NICS
                if peer != nic
                for path in range(2)
            ]
            record = {**common, "nic": nic, "state": "SYNCED", "paths": paths}
            put(topics.DELAYS, published_ns, nic, record)
        stepped = window % 20 == 5
        clocks = [
            {
                "clock": f"h{number}/system",
                "at_ns": start_ns,
                "offset_ns": 1_000_000 * number + window % 7,
                "offset_fraction_ns": 0.0,
                "drift_ppb": 10.0 * number,
                "bound_ns": 90.0,
                "state": "SYNCED",
                "pairs": 3,
                "residual_ns": 12.0 + number,
                "drift_sigma_ppb": 1.0,
                "event": ("STEP" if number == 3 else "RATE_CHANGE" if number == 2 else "NONE")
                if stepped
                else "NONE",
                "event_ns": 1500.0 if stepped and number >= 2 else 0.0,
                "knot_at_ns": start_ns - 5 * 10**8,
                "knot_offset_ns": 1_000_000 * number,
                "knot_offset_fraction_ns": 0.0,
                "knot_bound_ns": 95.0,
            }
            for number in range(4)
        ]
        suspects = [
            {
                "prober": NICS[1],
                "peer": NICS[2],
                "asymmetry_ns": -300.0 - window % 3,
                "sigma_ns": 4.0,
                "weight": 0.05,
            }
        ]
        offsets = {
            **common,
            "domain": "d0",
            "log_offset_ns": 0,
            "solved_ns": published_ns,
            "clocks": clocks,
            "reference": "ensemble",
            "suspects": suspects,
        }
        put(topics.CLOCK_OFFSETS, published_ns, "s0/0", offsets)
        nics = [
            {
                "nic": nic,
                "clock": f"{nic[:2]}/system",
                "run": 1,
                "batches": 10,
                "last_batch": 1,
                "samples": 60,
                "lost": 0,
                "lost_batches": 0,
                "restarts": 0,
                "clock_jump_ns": 0,
                "clock_ns": start_ns,
                "system_ns": start_ns,
                "append_ns": start_ns,
            }
            for nic in NICS
        ]
        fits = {
            **common,
            "source": "fabric.probes/0",
            "first_offset": 0,
            "next_offset": 40,
            "lag_messages": 3,
            "messages": 40,
            "bytes": 4000,
            "samples": 240,
            "late": 1,
            "rejected": 0,
            "nics": nics,
            "pairs": [
                {
                    "prober": nic,
                    "peer": peer,
                    "at_ns": start_ns,
                    "offset_ns": 5,
                    "offset_fraction_ns": 0.0,
                    "drift_ppb": 1.0,
                    "sigma_ns": 3.0,
                    "drift_sigma_ppb": 2.0,
                    "rtt_min_ns": 9_000.0,
                    "samples": 60,
                    "accepted": 12,
                    "margin_ns": 8_900.0,
                    "noise_ns": 4.0,
                }
                for nic in NICS
                for peer in NICS
                if peer != nic
            ],
        }
        put(topics.CLOCK_FITS, published_ns, "s0", fits)
    reject = {
        "topic": "fabric.probes",
        "partition": 0,
        "offset": 9,
        "append_ns": end_s * 10**9,
        "reader": "map",
        "reason": "TRUNCATED",
        "detail": "cut",
        "key": b"k",
        "size_bytes": 1,
        "head": b"h",
    }
    put(topics.REJECTS, end_s * 10**9, "fabric.probes", reject)
    nic = {
        "nic": NICS[0],
        "host": "h0",
        "device": "eth0",
        "shard": "s0",
        "rail": 0,
        "rack": "r1",
        "addresses": [],
        "probe_port": 0,
        "clock": "h0/system",
        "stamp": "KERNEL",
        "speed_bps": None,
        "mtu_bytes": None,
        "run": 1,
        "since_ns": 1,
        "announced_ns": 1,
        "capabilities": [],
        "simulation_pace": None,
        "path_ports": [],
        "first_hop": None,
        "slot_ns": 0,
        "slot_probes": 0,
        "ud": None,
        "stamp_error_ns": 0,
        "networks": [],
        "egress": None,
    }
    put(topics.INVENTORY, end_s * 10**9, NICS[0], nic)
    for topic, record, at_ns in _fabric(end_s):
        put(topic, at_ns, "k", codec.decode(codec.encode(topic.record, record), topic.record))
    written = {table for topic, messages in made.items() if messages for table in rows_of(topic, messages)}
    assert written >= set(tables.TABLES) - {tables.DELAYS_1S}, "a table without a row proves nothing"
    return made


LINK = "leaf1:swp3>spine1:swp1"
CABLE = "leaf1:swp3<>spine1:swp1"


def _fabric(end_s):
    """A link down in the range's middle, one down before it; queues, contention, alerts, flows, paths."""
    begin, middle = (end_s - WINDOWS) * 10**9, (end_s - WINDOWS // 2) * 10**9
    for subject, seq, state, since_ns, flaps in (
        (CABLE, 1, "UP", begin - 10**12, []),
        (CABLE, 2, "DOWN", middle, [middle]),
        (CABLE, 3, "UP", middle + 10 * 10**9, [middle]),
        ("old", 1, "DOWN", begin - 10**12, []),
        ("old", 2, "UP", begin - 10**11, []),
        ("h1/eth0", 1, "GREY", begin - 10**12, []),
    ):
        record = {
            "subject": subject,
            "kind": "LINK",
            "shard": "s0",
            "seq": seq,
            "state": state,
            "before": "UP",
            "links": [],
            "since_ns": since_ns,
            "evaluated_ns": since_ns,
            "flaps_hour": len(flaps),
            "flaps_total": 1,
            "flap_ns": flaps,
            "detected_by": "PROBES",
            "text": "words",
        }
        yield topics.LINK_HEALTH, record, since_ns + 10**8
    for window in range(end_s - WINDOWS, end_s):
        links = [
            {
                "link": link,
                "rate_bps": 10**9,
                "depth_mean_bytes": depth,
                "depth_max_bytes": 2 * depth,
                "bound_bytes": 10.0,
                "utilisation": load,
                "utilisation_bound": None,
                "from_flows": True,
                "samples": 10,
                "group": 0,
                "slot": [],
                "depth_bytes": [],
                "dscp": 0,
                "ce_share": 0.1,
                "ce_slot": [],
                "ce": [],
            }
            for link, depth, load in ((LINK, 50_000.0, 0.9), ("a:b>c:d", 0.0, None))
        ]
        queues = {
            "shard": "s0",
            "window": window,
            "part": 0,
            "parts": 1,
            "window_start_ns": window * 10**9,
            "slot_ns": 10**9,
            "slots": 1,
            "synced": True,
            "paths": 1,
            "solved_ns": 0,
            "links": links,
        }
        yield topics.QUEUES, queues, window * 10**9 + 12 * 10**8
    common = {"shard": "s0", "updated_ns": middle, "text": "words", "jobs": ["llm"]}
    for number, closed_ns in enumerate((None, middle, begin - 10**12)):
        opened = middle if closed_ns is None else closed_ns - 10**9
        yield (
            topics.CONTENTION,
            {
                **common,
                "window_id": f"w{number}",
                "link": LINK,
                "update": 0,
                "state": "OPENED" if closed_ns is None else "CLOSED",
                "kind": "INCAST",
                "confidence": 1.0,
                "opened_ns": opened,
                "closed_ns": closed_ns,
                "depth_bytes": 1.0,
                "depth_peak_bytes": 2.0,
                "delay_ns": 3.0,
                "utilisation": None,
                "over_ns": 1,
                "over_byte_s": 4.0 + number,
                "rate_bps": 0,
                "flows": [],
                "flows_total": 2,
                "links": [],
                "detected_by": "BOTH",
                "ce_share": 0.5,
                "dscp": 26,
            },
            middle,
        )
        yield (
            topics.ALERTS,
            {
                **common,
                "alert_id": f"a{number}",
                "subject": CABLE,
                "kind": "LINK_DOWN",
                "state": "RAISED" if closed_ns is None else "CLEARED",
                "severity": "CRITICAL",
                "update": 0,
                "raised_ns": opened,
                "cleared_ns": closed_ns,
                "links": [LINK],
                "nics": [],
                "grouped": [],
                "evidence": [{"topic": "t", "key": "k", "at_ns": 1, "text": "detected_by"}],
            },
            middle,
        )
    flow = {
        "flow_id": "h1/b/sock:1",
        "state": "OPEN",
        "nic": "h1/eth0",
        "peer": "h2/eth0",
        "source_address": "",
        "peer_address": "",
        "source_port": 1,
        "peer_port": 2,
        "protocol": "TCP",
        "links": [LINK],
        "job": "llm",
        "tenant": None,
        "bytes_total": 1,
        "interval_ns": 1,
        "bytes": 1,
        "rate_bps": 8e6,
        "can": ["MOVE"],
    }
    yield (
        topics.FLOWS,
        {
            "host": "h1",
            "boot": "b",
            "report": 1,
            "shard": "s0",
            "system_ns": middle,
            "whole": True,
            "flows": [flow],
        },
        middle,
    )
    traced_path = {
        "path": 1,
        "leg": "REQUEST",
        "links": [LINK],
        "found": "TRACED",
        "complete": True,
        "since_ns": 1,
        "changes": 0,
    }
    yield (
        topics.PATHS,
        {
            "nic": "h1/eth0",
            "peer": "h2/eth0",
            "shard": "s0",
            "run": 1,
            "traced_ns": middle,
            "paths": [traced_path],
        },
        middle,
    )
    for host, status, kernel in (("h1", "PASSED", "6.8"), ("h2", "FAILED", "6.5")):
        yield topics.AUDIT, audited(host, "backend.mtu", status, "ERROR", middle, kernel), middle
        yield topics.AUDIT, audited(host, "node.uptime", "UNKNOWN", "WARNING", middle, kernel), middle
    yield topics.AUDIT, audited("h1", "backend.mtu", "FAILED", "ERROR", begin, "6.5", run="r0"), begin
    yield topics.REPAIRS, make("Repair", repair_id="r1", node="h2", host="h2", opened_ns=middle), middle
    step = {
        "decision_id": "s0/1/0",
        "shard": "s0",
        "epoch": 1,
        "seq": 0,
        "at_ns": middle,
        "host": "h1",
        "action": "REROUTE",
        "flow_id": "h1/b/sock:1",
        "from_path": 1,
        "to_path": 2,
        "config_version": 1,
    }
    yield (
        topics.DECISIONS,
        {
            **step,
            "rate_bps": None,
            "expires_at_ns": middle + 10**9,
            "signature": b"",
            "reason": {"kind": "DOWN", "subject": "x", "seq": 1, "window_id": None},
            "text": "words",
        },
        middle,
    )
    yield (
        topics.ACTIONS,
        {
            **step,
            "at_ns": middle + 12_000_000,
            "outcome": "APPLIED",
            "took_ns": 1000,
            "detail": "",
            "rate_bps": None,
            "how": "SOCKET",
        },
        middle,
    )
    yield from _jobs(begin)


def _jobs(begin):
    """A job that is healthy for five intervals and then slow: the flow of rank 2, on h2, is late."""
    made = JobRecords(SimpleNamespace(nics=NICS, hops=lambda *_: [LINK]), "llm", ranks=4)
    for k in range(1, 11):
        end_ns = begin + k * INTERVAL_NS
        yield topics.DIAGNOSES, made.diagnosis(k, end_ns, 2 if k > 5 else None), end_ns
        for rank in range(4):
            yield topics.COLLECTIVES, made.batch(rank, k, end_ns, summaries=True), end_ns


@pytest.fixture
def asked(filled_history, expand_macros):
    client, from_s, to_s = filled_history

    def ask(sql, **variables):
        chosen = {name: [""] for name in ("rack", "rail", "nic", "peer", "clock", "link", "job")} | variables
        return client.query(expand_macros(sql, from_s, to_s, **chosen))

    return ask


def audited(host, check, status, severity, at_ns, kernel, run="r1"):
    """Return a result of an audit."""
    return {
        "run": run,
        "host": host,
        "shard": "s0",
        "sku": "h100",
        "check": check,
        "category": "BACKEND",
        "title": "as expected",
        "status": status,
        "severity": severity,
        "action": "MONITOR",
        "remedy": "mend",
        "text": "words",
        "checked_ns": at_ns,
        "took_ns": 1,
        "checks": 2,
        "findings": [],
        "facts": [
            {"name": "kernel", "subject": "", "text": kernel, "number": None},
            {"name": "memory_gib", "subject": "", "text": host, "number": 2.0},
        ],
    }
