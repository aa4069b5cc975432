"""Rows of the history tables with known figures, written to an embedded ClickHouse or to a server."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fabrictime.web.history_client import ClickHouse
from schemas import table_statements, tables
from schemas.kafka.message import Message
from schemas.records import AuditResult
from streams.history.rows import rows_of

SECOND_NS = 1_000_000_000


def _time(ns: int) -> str:
    return f"{ns // SECOND_NS}.{ns % SECOND_NS:09d}"


def _stored(value: Any) -> str:
    """Return a time of an Arrow table as JSON rows have it."""
    return _time(value.value)


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
        for statement in table_statements.create_all(database=self.database):
            self.client.command(statement)

    def empty(self) -> None:
        for table in tables.TABLES:
            self.client.command(f"TRUNCATE TABLE {self.database}.{table}")

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        block = "\n".join(json.dumps(row) for row in rows)
        names = tables.TABLES[table].column_names
        self.client.raw_insert(f"{self.database}.{table}", names, block, fmt="JSONEachRow")

    def records(self, topic: str, messages: Sequence[Any]) -> None:
        """Records of a topic (any key and append time), as the sink stores them."""
        made = [Message(1 + k, topic, 0, k, "", None, record) for k, record in enumerate(messages)]
        for table, rows in rows_of(topic, made).items():
            self.insert(table, json.loads(json.dumps(rows.to_pylist(), default=_stored)))

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
                    "nic": nic,
                    "peer": peer,
                    "path": path,
                    "shard": "s0",
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "state": "SYNCED",
                    "count": 100,
                    "lost": 0,
                    "no_t3": 0,
                    "dscp": 0,
                    "ecn": 10,
                    "forward_ce": 1,
                    "reverse_ce": 0,
                    "bound_ns": 800.0,
                    "rtt_min_ns": 15_000.0,
                    "rtt_p50_ns": 18_000.0,
                    "rtt_p99_ns": 40_000.0,
                    "recorded_ns": start_ns + window_ns,
                }
                for direction in ("forward", "reverse"):
                    p50 = figures.get(f"{direction}_p50_ns", 9_000.0)
                    row[f"{direction}_p50_ns"] = p50
                    known = p50 is not None
                    row[f"{direction}_min_ns"] = p50 * 0.8 if known else None
                    row[f"{direction}_p99_ns"] = p50 * 2 if known else None
                    row[f"{direction}_bucket"] = [_bucket(p50)] if known else []
                    row[f"{direction}_bucket_count"] = [figures.get("count", 100)] if known else []
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
                    "shard": "s0",
                    "domain": "s0/0",
                    "clock": clock,
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "log_offset_ns": 0,
                    "solved_ns": start_ns + window_ns + 180_000_000,
                    "at_ns": start_ns,
                    "offset_ns": 0,
                    "drift_ppb": 0.0,
                    "bound_ns": 400.0,
                    "state": "SYNCED",
                    "pairs": 10,
                    "residual_ns": 12.5,
                    "recorded_ns": start_ns + window_ns,
                    **figures,
                }
                for clock, figures in clocks.items()
            ),
        )

    def audits(self, results: Iterable[AuditResult]) -> None:
        """Results of audits, as the sink stores them."""
        rows = []
        for each in results:
            arrays = {
                f"{kind}_{name}": [item[name] for item in items]  # type: ignore[literal-required]
                for kind, items, names in (
                    ("finding", each["findings"], ("subject", "status", "text")),
                    ("fact", each["facts"], ("name", "subject", "text", "number")),
                )
                for name in names
            }
            at = {"checked": _time(each["checked_ns"]), "recorded_ns": each["checked_ns"]}
            rows.append({**each, **arrays, **at})
        self.insert(
            tables.AUDIT,
            ({name: row[name] for name in tables.TABLES[tables.AUDIT].column_names} for row in rows),
        )

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
                    "shard": "s0",
                    "domain": "s0/0",
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "prober": prober,
                    "peer": peer,
                    "asymmetry_ns": 300.0,
                    "sigma_ns": 4.0,
                    "weight": 0.05,
                    "recorded_ns": start_ns + window_ns,
                    **figures,
                }
                for (prober, peer), figures in pairs.items()
            ),
        )

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
                    "shard": "s0",
                    "source": "fabric.probes/0",
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "prober": prober,
                    "peer": peer,
                    "at_ns": start_ns,
                    "offset_ns": 0,
                    "drift_ppb": 0.0,
                    "sigma_ns": 3.0,
                    "drift_sigma_ppb": 2.0,
                    "rtt_min_ns": 9_000.0,
                    "samples": 500,
                    "accepted": 60,
                    "margin_ns": 8_900.0,
                    "noise_ns": 4.0,
                    "recorded_ns": start_ns + window_ns,
                    **figures,
                }
                for prober, peer in pairs
            ),
        )

    def pipeline(
        self, start_ns: int, sources: Mapping[str, Mapping[str, Any]], window_ns: int = SECOND_NS
    ) -> None:
        """One window: source -> figures."""
        self.insert(
            tables.PIPELINE,
            (
                {
                    "shard": "s0",
                    "source": source,
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "part": 0,
                    "parts": 1,
                    "first_offset": 0,
                    "next_offset": 10,
                    "lag_messages": 0,
                    "messages": 10,
                    "bytes": 100_000,
                    "samples": 5_000,
                    "late": 0,
                    "rejected": 0,
                    "nics": 1,
                    "pairs": 3,
                    "recorded_ns": start_ns + window_ns,
                    **figures,
                }
                for source, figures in sources.items()
            ),
        )

    def nic_windows(
        self, start_ns: int, nics: Mapping[str, Mapping[str, Any]], window_ns: int = SECOND_NS
    ) -> None:
        """One window: NIC -> figures."""
        self.insert(
            tables.NIC_WINDOWS,
            (
                {
                    "shard": "s0",
                    "source": "fabric.probes/0",
                    "window": start_ns // window_ns,
                    "window_start": _time(start_ns),
                    "window_end": _time(start_ns + window_ns),
                    "nic": nic,
                    "clock": f"{nic.split('/')[0]}/system",
                    "run": 7,
                    "batches": 10,
                    "samples": 5_000,
                    "lost": 0,
                    "lost_batches": 0,
                    "restarts": 0,
                    "clock_jump_ns": 0,
                    "clock_ns": start_ns,
                    "system_ns": start_ns,
                    "append_ns": start_ns,
                    "recorded_ns": start_ns + window_ns,
                    **figures,
                }
                for nic, figures in nics.items()
            ),
        )

    def nics(self, nics: Mapping[str, Mapping[str, Any]], at_ns: int) -> None:
        """The inventory: NIC -> fields."""
        self.insert(
            tables.NICS,
            (
                {
                    "nic": nic,
                    "host": nic.split("/")[0],
                    "device": nic.split("/")[1],
                    "shard": "s0",
                    "rail": None,
                    "rack": None,
                    "addresses": ["127.0.0.1"],
                    "probe_port": 9319,
                    "clock": f"{nic.split('/')[0]}/system",
                    "stamp": "KERNEL",
                    "speed_bps": None,
                    "mtu_bytes": 1500,
                    "run": 7,
                    "since_ns": at_ns,
                    "announced_ns": at_ns,
                    "capabilities": [],
                    "simulation_pace": None,
                    "gone": 0,
                    "recorded_ns": at_ns,
                    **fields,
                }
                for nic, fields in nics.items()
            ),
        )

    def rejects(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Refused messages."""
        self.insert(
            tables.REJECTS,
            (
                {
                    "topic": "fabric.probes",
                    "partition": 0,
                    "offset": 0,
                    "append_ns": 0,
                    "reader": "map",
                    "reason": "MALFORMED",
                    "detail": "",
                    "key": "",
                    "size_bytes": 12,
                    "head": "",
                    "recorded_ns": 0,
                    **row,
                }
                for row in rows
            ),
        )


class Filled(Writer):
    """The tables in this process's chdb, readable as the page reads them."""

    def __init__(self, path: Path) -> None:
        import clickhouse_connect

        super().__init__(clickhouse_connect.get_client(interface="chdb", path=str(path)))
        self.history = ClickHouse(lambda: self.client, "chdb", self.database)

    def fresh(self) -> None:
        self.client.command(f"DROP DATABASE IF EXISTS {self.database}")
        self.create()
