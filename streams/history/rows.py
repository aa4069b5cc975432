"""Converts records to rows: one Arrow table per ClickHouse table, with the columns of `schemas.tables`.

Only the newest of several records with one identity in a batch is kept, so that a block never has a row
twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from schemas import tables, topics
from schemas.codec import BadRecord, raw_schema
from schemas.identities import identity_of
from schemas.kafka.message import Message
from schemas.records import (
    Alert,
    AuditResult,
    ClockFits,
    ClockOffsets,
    CollectiveBatch,
    ContentionWindow,
    Decision,
    Diagnosis,
    FlowReports,
    LinkQueues,
    Nic,
    PathDelays,
    PathMaps,
    Stamp,
)
from streams.history.columns import arrow_schema
from streams.history.nic_profiles import nic_profiles

EARLIEST_NS: Final = 946_684_800_000_000_000
"""2000-01-01: a window before it, or after `LATEST_NS` (2200-01-01), is invalid."""
LATEST_NS: Final = 7_258_118_400_000_000_000

Columns = dict[str, list[Any]]


def rows_of(topic: str, messages: Sequence[Message]) -> dict[str, pa.Table]:
    """Return the rows of `messages` by table; tables without rows are left out.

    Their records are decoded; a message without one is a tombstone, whose key identifies it.

    Raises KeyError for a topic that history does not store, BadRecord for values that no column can store.
    """
    make = _MAKERS[topic]
    out: dict[str, Columns] = defaultdict(lambda: defaultdict(list))
    for message in _newest(topic, messages):
        make(message, out)
    return {table: _arrow(table, columns) for table, columns in out.items() if columns}


def _arrow(table: str, columns: Columns) -> pa.Table:
    schema = arrow_schema(table)
    arrays = []
    for field in schema:
        try:
            arrays.append(pa.array(columns[field.name], type=field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise BadRecord("OUT_OF_RANGE", f"{table}.{field.name}: {error}"[:300]) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _newest(topic: str, messages: Sequence[Message]) -> Iterable[Message]:
    """Return the last message of each identity, in the order of the log."""
    latest: dict[Any, Message] = {}
    for message in messages:
        record = message.record
        identity = (message.key,) if record is None else identity_of(topics.TOPICS[topic], record)
        latest.pop(identity, None)
        latest[identity] = message
    return latest.values()


def _repeat(columns: Columns, times: int, **values: Any) -> None:
    for name, value in values.items():
        columns[name].extend([value] * times)


def _window(record: PathDelays | ClockOffsets | ClockFits) -> dict[str, int]:
    return {
        "window": record["window"],
        "window_start": _within("window_start_ns", record["window_start_ns"]),
        "window_end": _within("window_end_ns", record["window_end_ns"]),
    }


def _take(columns: Columns, items: Sequence[Mapping[str, object]], names: Iterable[str]) -> None:
    for name in names:
        columns[name].extend([item[name] for item in items])


def _elements(record: str, field: str) -> tuple[str, ...]:
    schema = next(each for each in raw_schema(record)["fields"] if each["name"] == field)
    return tuple(each["name"] for each in schema["type"]["items"]["fields"])


_PATH_FIELDS: Final = _elements("PathDelays", "paths")
_CLOCK_FIELDS: Final = _elements("ClockOffsets", "clocks")
_NIC_FIELDS: Final = _elements("ClockFits", "nics")
_PAIR_FIELDS: Final = tuple(
    name for name in _elements("ClockFits", "pairs") if name in tables.TABLES[tables.PAIR_FITS].column_names
)
"""Hull vertices are stored only in the log: the solver alone uses them, for a day."""
_SUSPECT_FIELDS: Final = _elements("ClockOffsets", "suspects")


def _delays(message: Message, out: dict[str, Columns]) -> None:
    record: PathDelays | None = message.record
    if record is None or not record["paths"]:
        return
    paths = record["paths"]
    for path in paths:
        if len(path["forward_bucket"]) != len(path["forward_bucket_count"]):
            raise BadRecord("MALFORMED", "paths.forward_bucket: not as long as forward_bucket_count")
        if len(path["reverse_bucket"]) != len(path["reverse_bucket_count"]):
            raise BadRecord("MALFORMED", "paths.reverse_bucket: not as long as reverse_bucket_count")
    if len({(path["peer"], path["path"], path["dscp"]) for path in paths}) != len(paths):
        raise BadRecord("MALFORMED", "paths: a peer, path and class stands there twice")
    columns = out[tables.DELAYS]
    _repeat(
        columns,
        len(paths),
        nic=record["nic"],
        shard=record["shard"],
        **_window(record),
        part=record["part"],
        state=record["state"],
        recorded_ns=message.append_ns,
    )
    _take(columns, paths, _PATH_FIELDS)


def _clocks(message: Message, out: dict[str, Columns]) -> None:
    record: ClockOffsets | None = message.record
    if record is None:
        return
    common = {
        "shard": record["shard"],
        "domain": record["domain"],
        **_window(record),
        "recorded_ns": message.append_ns,
    }
    suspects = out[tables.SUSPECTS]  # inserted first: a window with clocks then also has its suspects
    if record["clocks"]:
        columns = out[tables.CLOCKS]
        _repeat(
            columns,
            len(record["clocks"]),
            **common,
            log_offset_ns=record["log_offset_ns"],
            solved_ns=record["solved_ns"],
            reference=record["reference"],
        )
        _take(columns, record["clocks"], _CLOCK_FIELDS)
    if record["suspects"]:
        _repeat(suspects, len(record["suspects"]), **common)
        _take(suspects, record["suspects"], _SUSPECT_FIELDS)


_FITS_FIELDS: Final = (
    "shard",
    "source",
    "part",
    "parts",
    "first_offset",
    "next_offset",
    "lag_messages",
    "messages",
    "bytes",
    "samples",
    "late",
    "rejected",
)


def _fits(message: Message, out: dict[str, Columns]) -> None:
    record: ClockFits | None = message.record
    if record is None:
        return
    window = _window(record)
    columns = out[tables.PIPELINE]
    _take(columns, [record], _FITS_FIELDS)
    _repeat(
        columns,
        1,
        **window,
        nics=len(record["nics"]),
        pairs=len(record["pairs"]),
        recorded_ns=message.append_ns,
    )
    nics = record["nics"]
    if nics:
        columns = out[tables.NIC_WINDOWS]
        _repeat(
            columns,
            len(nics),
            shard=record["shard"],
            source=record["source"],
            **window,
            recorded_ns=message.append_ns,
        )
        _take(columns, nics, _NIC_FIELDS)
    pairs = record["pairs"]
    if pairs:
        columns = out[tables.PAIR_FITS]
        _repeat(
            columns,
            len(pairs),
            shard=record["shard"],
            source=record["source"],
            **window,
            recorded_ns=message.append_ns,
        )
        _take(columns, pairs, _PAIR_FIELDS)


_NIC_NOTHING: Final[Nic] = {
    "nic": "",
    "host": "",
    "device": "",
    "shard": "",
    "rail": None,
    "rack": None,
    "addresses": [],
    "probe_port": 0,
    "clock": "",
    "stamp": Stamp.UNKNOWN,
    "speed_bps": None,
    "mtu_bytes": None,
    "run": 0,
    "since_ns": 0,
    "announced_ns": 0,
    "capabilities": [],
    "path_ports": [],
    "first_hop": None,
    "slot_ns": 0,
    "slot_probes": 0,
    "ud": None,
    "stamp_error_ns": 0,
    "networks": [],
    "egress": None,
    "simulation_pace": None,
}


def _nics(message: Message, out: dict[str, Columns]) -> None:
    record: Nic | None = message.record
    known = record or _NIC_NOTHING
    _take(
        out[tables.NICS],
        [
            {
                **known,
                "nic": message.key if record is None else record["nic"],
                "ud": None if known["ud"] is None else json.dumps(known["ud"], separators=(",", ":")),
                "gone": int(record is None),
                "recorded_ns": message.append_ns,
            }
        ],
        tables.TABLES[tables.NICS].column_names,
    )


def _rejects(message: Message, out: dict[str, Columns]) -> None:
    if message.record is not None:
        _take(
            out[tables.REJECTS],
            [{**message.record, "recorded_ns": message.append_ns}],
            tables.TABLES[tables.REJECTS].column_names,
        )


def _within(name: str, ns: int) -> int:
    if not EARLIEST_NS <= ns <= LATEST_NS:
        raise BadRecord("OUT_OF_RANGE", f"{name}: {ns}, expected a time in the years 2000 to 2199")
    return ns


def _one(table: str, message: Message, out: dict[str, Columns], **more: Any) -> None:
    """Return one row of a record with array fields; `more`: the columns that the record lacks."""
    row = {**(message.record or {}), "recorded_ns": message.append_ns, **more}
    _take(out[table], [row], tables.TABLES[table].column_names)


def _health(message: Message, out: dict[str, Columns]) -> None:
    if message.record is not None:
        since = _within("since_ns", message.record["since_ns"])
        classes = message.record["classes"]
        _one(
            tables.LINK_HEALTH,
            message,
            out,
            since=since,
            class_dscp=[each["dscp"] for each in classes],
            class_loss_rate=[each["loss_rate"] for each in classes],
            class_is_lossy=[int(each["is_lossy"]) for each in classes],
        )


_QUEUE_FIELDS: Final = tuple(
    name
    for name in _elements("LinkQueues", "links")
    if name in tables.TABLES[tables.LINK_QUEUES].column_names
)


def _queues(message: Message, out: dict[str, Columns]) -> None:
    record: LinkQueues | None = message.record
    if record is None or not record["links"] or record["slots"] > 1:
        return  # blocks of short slots are stored only in the log: each second is also published whole
    links = record["links"]
    if len({each["link"] for each in links}) != len(links):
        raise BadRecord("MALFORMED", "links: a link stands there twice")
    start_ns = _within("window_start_ns", record["window_start_ns"])
    columns = out[tables.LINK_QUEUES]
    _repeat(
        columns,
        len(links),
        shard=record["shard"],
        window=record["window"],
        part=record["part"],
        window_start=start_ns,
        window_end=_within("window's end", start_ns + record["slot_ns"] * record["slots"]),
        synced=int(record["synced"]),
        recorded_ns=message.append_ns,
    )
    _take(columns, [{**each, "from_flows": int(each["from_flows"])} for each in links], _QUEUE_FIELDS)


def _contention(message: Message, out: dict[str, Columns]) -> None:
    record: ContentionWindow | None = message.record
    if record is None:
        return
    flows = record["flows"]
    _one(
        tables.CONTENTION,
        message,
        out,
        opened=_within("opened_ns", record["opened_ns"]),
        flow_id=[flow["flow_id"] for flow in flows],
        flow_nic=[flow["nic"] for flow in flows],
        flow_peer=[flow["peer"] for flow in flows],
        flow_rate_bps=[flow["rate_bps"] for flow in flows],
        flow_share=[flow["share"] for flow in flows],
        flow_job=[flow["job"] or "" for flow in flows],
    )


def _alerts(message: Message, out: dict[str, Columns]) -> None:
    record: Alert | None = message.record
    if record is not None:
        _one(
            tables.ALERTS,
            message,
            out,
            raised=_within("raised_ns", record["raised_ns"]),
            evidence_topic=[each["topic"] for each in record["evidence"]],
            evidence_key=[each["key"] for each in record["evidence"]],
            evidence_at_ns=[each["at_ns"] for each in record["evidence"]],
            evidence_text=[each["text"] for each in record["evidence"]],
        )


_FLOW_FIELDS: Final = _elements("FlowReports", "flows")


def _flows(message: Message, out: dict[str, Columns]) -> None:
    record: FlowReports | None = message.record
    if record is None or not record["flows"]:
        return
    flows = record["flows"]
    if len({flow["flow_id"] for flow in flows}) != len(flows):
        raise BadRecord("MALFORMED", "flows: a flow stands there twice")
    columns = out[tables.FLOWS]
    _repeat(
        columns,
        len(flows),
        reported=message.append_ns,
        recorded_ns=message.append_ns,
        host=record["host"],
        boot=record["boot"],
        report=record["report"],
        shard=record["shard"],
        system_ns=record["system_ns"],
    )
    _take(columns, flows, _FLOW_FIELDS)


_PATH_MAP_FIELDS: Final = _elements("PathMaps", "paths")


def _paths(message: Message, out: dict[str, Columns]) -> None:
    record: PathMaps | None = message.record
    if record is None or not record["paths"]:
        return
    paths = record["paths"]
    if len({(path["path"], path["leg"]) for path in paths}) != len(paths):
        raise BadRecord("MALFORMED", "paths: a path and leg stands there twice")
    columns = out[tables.PATHS]
    _repeat(
        columns,
        len(paths),
        recorded_ns=message.append_ns,
        nic=record["nic"],
        peer=record["peer"],
        shard=record["shard"],
        run=record["run"],
        traced_ns=record["traced_ns"],
    )
    _take(columns, [{**path, "complete": int(path["complete"])} for path in paths], _PATH_MAP_FIELDS)


def _decisions(message: Message, out: dict[str, Columns]) -> None:
    record: Decision | None = message.record
    if record is not None:
        reason = record["reason"]
        _one(
            tables.DECISIONS,
            message,
            out,
            decided=_within("at_ns", record["at_ns"]),
            reason_kind=reason["kind"],
            reason_subject=reason["subject"],
            reason_seq=reason["seq"],
            reason_window_id=reason["window_id"] or "",
        )


def _actions(message: Message, out: dict[str, Columns]) -> None:
    if message.record is not None:
        _one(tables.ACTIONS, message, out, done=_within("at_ns", message.record["at_ns"]))


def _audit(message: Message, out: dict[str, Columns]) -> None:
    record: AuditResult | None = message.record
    if record is not None:
        findings, facts = record["findings"], record["facts"]
        _one(
            tables.AUDIT,
            message,
            out,
            checked=_within("checked_ns", record["checked_ns"]),
            finding_subject=[each["subject"] for each in findings],
            finding_status=[each["status"] for each in findings],
            finding_text=[each["text"] for each in findings],
            fact_name=[each["name"] for each in facts],
            fact_subject=[each["subject"] for each in facts],
            fact_text=[each["text"] for each in facts],
            fact_number=[each["number"] for each in facts],
        )


_RANK_FIELDS: Final = _elements("Diagnosis", "time_splits")
_FLOW_OF_JOB_FIELDS: Final = _elements("Diagnosis", "flows")
MAX_JOB_FLOWS: Final = 256
"""Flows of a job and interval that history stores: the heaviest and slowest."""


def _diagnoses(message: Message, out: dict[str, Columns]) -> None:
    record: Diagnosis | None = message.record
    if record is None:
        return
    began_ns = _within("begin_ns", record["begin_ns"])
    evidence, alternatives = record["evidence"], record["alternatives"]
    _one(
        tables.DIAGNOSES,
        message,
        out,
        began=began_ns,
        blames_network=int(record["blames_network"]),
        **{
            f"evidence_{name}": [each[name] for each in evidence]
            for name in ("topic", "subject", "quantity", "number", "expected", "text")
        },
        **{
            f"alternative_{name}": [each[name] for each in alternatives]
            for name in ("verdict", "confidence", "subject", "text")
        },
    )
    common = {
        "job": record["job"],
        "number": record["number"],
        "began": began_ns,
        "end_ns": record["end_ns"],
        "recorded_ns": message.append_ns,
    }
    parts: tuple[tuple[str, Sequence[Any], tuple[str, ...]], ...] = (
        (tables.RANK_TIMES, record["time_splits"], _RANK_FIELDS),
        (tables.JOB_FLOWS, record["flows"][:MAX_JOB_FLOWS], _FLOW_OF_JOB_FIELDS),
    )
    for table, items, fields in parts:
        if items:
            _repeat(out[table], len(items), **common)
            _take(out[table], items, fields)


_SUMMARY_FIELDS: Final = tuple(
    name
    for name in _elements("CollectiveBatch", "summaries")
    if name in tables.TABLES[tables.COLLECTIVES].column_names
)


def _collectives(message: Message, out: dict[str, Columns]) -> None:
    record: CollectiveBatch | None = message.record
    if record is None:
        return  # single operations are stored only in the log, for a day
    summaries, communicators = record["summaries"], record["communicators"]
    if any(each["communicator"] >= len(communicators) for each in summaries):
        raise BadRecord("MALFORMED", "summaries: a communicator is not among the record's communicators")
    common = {name: record[name] for name in ("job", "host", "boot", "process", "batch", "end_ns")}
    common |= {"began": _within("begin_ns", record["begin_ns"]), "recorded_ns": message.append_ns}
    if profiles := nic_profiles(record):
        _repeat(out[tables.JOB_NICS], len(profiles), **common)
        _take(out[tables.JOB_NICS], profiles, profiles[0])
    if not summaries:
        return
    columns = out[tables.COLLECTIVES]
    _repeat(columns, len(summaries), source=record["source"], **common)
    known = [communicators[each["communicator"]] for each in summaries]
    columns["communicator_id"].extend([each["id"] for each in known])
    columns["rank"].extend([each["rank"] for each in known])
    columns["ranks_total"].extend([each["ranks"] for each in known])
    _take(columns, summaries, _SUMMARY_FIELDS)


_MAKERS: Final[dict[str, Callable[[Message, dict[str, Columns]], None]]] = {
    topics.DELAYS.name: _delays,
    topics.CLOCK_OFFSETS.name: _clocks,
    topics.CLOCK_FITS.name: _fits,
    topics.INVENTORY.name: _nics,
    topics.REJECTS.name: _rejects,
    topics.LINK_HEALTH.name: _health,
    topics.QUEUES.name: _queues,
    topics.CONTENTION.name: _contention,
    topics.ALERTS.name: _alerts,
    topics.FLOWS.name: _flows,
    topics.PATHS.name: _paths,
    topics.DECISIONS.name: _decisions,
    topics.ACTIONS.name: _actions,
    topics.AUDIT.name: _audit,
    topics.DIAGNOSES.name: _diagnoses,
    topics.COLLECTIVES.name: _collectives,
}

TOPICS: Final[tuple[topics.Topic, ...]] = tuple(topics.TOPICS[name] for name in _MAKERS)
"""The topics that history stores."""
