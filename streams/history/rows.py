"""Converts records to rows: one Arrow table per ClickHouse table, with the columns of `schemas.tables`.

If several records in a batch have the same identity, only the newest is kept, so no row is twice in a block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from schemas import tables, topics
from schemas.codec import BadRecord
from schemas.columns import APPEND_TIME, Column
from schemas.identities import identity_of
from schemas.kafka.message import Message
from schemas.records import CollectiveBatch, Diagnosis, FlowReports, LinkQueues, PathDelays, PathMaps
from streams.history.columns import arrow_schema
from streams.history.nic_profiles import nic_profiles

EARLIEST_NS: Final = 946_684_800_000_000_000
"""2000-01-01. A window before this time or after `LATEST_NS` (2200-01-01) is invalid."""
LATEST_NS: Final = 7_258_118_400_000_000_000
MAX_JOB_FLOWS: Final = 256
"""Largest number of flows of a job and interval that history stores: the heaviest and slowest."""

Record = Mapping[str, Any]
"""A record of any topic, with the columns that history derives from it."""


def rows_of(topic: str, messages: Sequence[Message]) -> dict[str, pa.Table]:
    """Convert `messages` to rows, by ClickHouse table; tables without rows are left out.

    The messages must be decoded. A message without a record is a tombstone, whose key identifies its row.

    Raises KeyError for a topic that history does not store, BadRecord for values that no column can store.
    """
    records = []
    for message in _newest(topic, messages):
        if record := _record_of(topic, message):
            records.append({**record, APPEND_TIME: message.append_ns})
    blocks = {table.name: _block(table, records) for table in _TABLES_OF[topic]}
    return {name: block for name, block in blocks.items() if block.num_rows}


def _newest(topic: str, messages: Sequence[Message]) -> Iterable[Message]:
    """Return only the last message of each record identity, in log order."""
    latest: dict[Any, Message] = {}
    for message in messages:
        record = message.record
        identity = (message.key,) if record is None else identity_of(topics.TOPICS[topic], record)
        latest.pop(identity, None)
        latest[identity] = message
    return latest.values()


def _record_of(topic: str, message: Message) -> Record | None:
    """Return the record of a message with its derived columns; None if history does not store it."""
    if message.record is not None:
        with_derived = _WITH_DERIVED.get(topic)
        return message.record if with_derived is None else with_derived(message.record)
    return {**_NO_NIC, "nic": message.key, "gone": 1} if topic == topics.INVENTORY.name else None


_arrow_schema = cache(arrow_schema)


def _block(table: tables.Table, records: Sequence[Record]) -> pa.Table:
    """Return a table's rows: one for each item of a record, together with the record's own fields."""
    schema = _arrow_schema(table.name)
    items: Sequence[Record] = records
    if table.items is not None:
        items = [item for record in records for item in record[table.items]]
        counts = [len(record[table.items]) for record in records]
        record_of_row = pa.array(np.repeat(np.arange(len(records)), counts))
    arrays = []
    for column, field in zip(table.columns, schema, strict=True):
        try:
            values = _values(column, items if column.in_item else records)
            array = pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise BadRecord("OUT_OF_RANGE", f"{table.name}.{column.name}: {error}"[:300]) from error
        arrays.append(array if column.in_item or table.items is None else array.take(record_of_row))
    return pa.Table.from_arrays(arrays, schema=schema)


def _values(column: Column, sources: Sequence[Record]) -> list[Any]:
    """Return a column's values, one per source record, converted to types that Arrow accepts."""
    name, *rest = column.path
    values = [source[name] for source in sources]
    if column.kind == "time" and name != APPEND_TIME:
        _check_times(name, values)
    if rest:
        [part] = rest
        if column.kind.endswith("[]"):
            values = [[item[part] for item in items] for items in values]
        else:
            values = [value[part] for value in values]
    convert = _conversion_of(column)
    return values if convert is None else list(map(convert, values))


@cache
def _conversion_of(column: Column) -> Callable[[Any], Any] | None:
    """Return the function that converts a column's values for Arrow; None if they need no conversion."""
    if column.kind == "record[]":
        return len
    if column.kind == "record?":
        return lambda record: None if record is None else json.dumps(record, separators=(",", ":"))
    element: Callable[[Any], Any]
    if column.kind.startswith("boolean"):
        element = int
    elif column.kind.startswith("string?") and "Nullable" not in column.type:
        element = lambda text: text or ""  # noqa: E731
    else:
        return None
    return (lambda values: list(map(element, values))) if column.kind.endswith("[]") else element


def _check_times(name: str, times_ns: Iterable[int]) -> None:
    for ns in times_ns:
        if not EARLIEST_NS <= ns <= LATEST_NS:
            raise BadRecord("OUT_OF_RANGE", f"{name}: {ns}, expected a time in the years 2000 to 2199")


def _require_unique(items: Collection[Any], name: str, *fields: str) -> None:
    if len(set(map(itemgetter(*fields), items))) != len(items):
        raise BadRecord("MALFORMED", f"{name} stands there twice")


def _delays(record: PathDelays) -> Record | None:
    if not record["paths"]:
        return None
    for path in record["paths"]:
        if len(path["forward_bucket"]) != len(path["forward_bucket_count"]):
            raise BadRecord("MALFORMED", "paths.forward_bucket: not as long as forward_bucket_count")
        if len(path["reverse_bucket"]) != len(path["reverse_bucket_count"]):
            raise BadRecord("MALFORMED", "paths.reverse_bucket: not as long as reverse_bucket_count")
    _require_unique(record["paths"], "paths: a peer, path and class", "peer", "path", "dscp")
    return record


def _flows(record: FlowReports) -> Record:
    _require_unique(record["flows"], "flows: a flow", "flow_id")
    return record


def _paths(record: PathMaps) -> Record:
    _require_unique(record["paths"], "paths: a path and leg", "path", "leg")
    return record


def _queues(record: LinkQueues) -> Record | None:
    if not record["links"] or record["slots"] > 1:
        return None  # blocks of short slots are stored only in the log: each second is also published whole
    _require_unique(record["links"], "links: a link", "link")
    window_end = record["window_start_ns"] + record["slot_ns"] * record["slots"]
    return {**record, "links": [{**link, "window_end": window_end} for link in record["links"]]}


def _diagnosis(record: Diagnosis) -> Record:
    return {**record, "flows": record["flows"][:MAX_JOB_FLOWS]}


def _collectives(record: CollectiveBatch) -> Record:
    """Return the record with summaries and NIC profiles instead of operations, which only the log stores."""
    communicators = record["communicators"]
    if any(summary["communicator"] >= len(communicators) for summary in record["summaries"]):
        raise BadRecord("MALFORMED", "summaries: a communicator is not among the record's communicators")
    columns = [
        {
            "communicator_id": communicator["id"],
            "rank": communicator["rank"],
            "ranks_total": communicator["ranks"],
        }
        for communicator in communicators
    ]
    summaries = [{**summary, **columns[summary["communicator"]]} for summary in record["summaries"]]
    return {**record, "summaries": summaries, "nics": nic_profiles(record)}


_WITH_DERIVED: Final[Mapping[str, Callable[[Any], Record | None]]] = {
    topics.DELAYS.name: _delays,
    topics.QUEUES.name: _queues,
    topics.FLOWS.name: _flows,
    topics.PATHS.name: _paths,
    topics.DIAGNOSES.name: _diagnosis,
    topics.COLLECTIVES.name: _collectives,
    topics.INVENTORY.name: lambda record: {**record, "gone": 0},
}
"""Maps topic to a function that checks a record and adds derived columns; None if nothing is stored."""

_ABSENT: Final = {"string": "", "enum": "UNKNOWN", "int": 0, "long": 0, "string[]": [], "int[]": []}
_NO_NIC: Final = {column.path[0]: _ABSENT.get(column.kind) for column in tables.TABLES[tables.NICS].columns}
"""The record stored for a NIC that is gone."""

_TABLES_OF: Final[dict[str, list[tables.Table]]] = {}
for _table in tables.TABLES.values():
    if not _table.of_view:
        _TABLES_OF.setdefault(_table.topic.name, []).append(_table)

TOPICS: Final[tuple[topics.Topic, ...]] = tuple(topics.TOPICS[name] for name in _TABLES_OF)
"""The topics that history stores."""
