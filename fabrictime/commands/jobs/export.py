"""Exports a job's operations from the log as a trace: for Perfetto and Chrome, or as Chakra traces.

The operations come from `fabric.collectives`, which holds only those within the reporters' trace budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fabrictime.state.job_trace import chakra_nodes, chrome_events
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.topics import COLLECTIVES, CONTENTION, DIAGNOSES, LINK_HEALTH, Topic

S: Final = 1_000_000_000


def _read(
    cluster: KafkaSettings | str,
    starts: Mapping[Topic[Any], Start],
    registry: codec.Registry | None,
    key: str | None = None,
) -> dict[str, list[Any]]:
    """Return the records of each topic, by topic name; unreadable records are left out."""
    by_topic: dict[str, list[Any]] = {topic.name: [] for topic in starts}
    with TopicReader.open(cluster, starts, key=key) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry):
            if record is not None:
                by_topic[message.topic].append(record)
    return by_topic


def _collectives(
    cluster: KafkaSettings | str, job: str, since_s: float, registry: codec.Registry | None
) -> list[Any]:
    """Return the job's records of `fabric.collectives`. Raises ValueError if the job has none."""
    records = _read(cluster, {COLLECTIVES: back(since_s)}, registry, job)[COLLECTIVES.name]
    if not records:
        raise InputError(f"job {job!r}: no operations of it are in the last {since_s:g} s of the log")
    by_batch = {
        (record["host"], record["boot"], record["process"], record["batch"]): record for record in records
    }
    return sorted(by_batch.values(), key=lambda record: record["begin_ns"])


def export_chrome(
    cluster: KafkaSettings | str, job: str, file: Path, since_s: float, registry: codec.Registry | None = None
) -> str:
    """Write a job's trace events to a file. Return a line for display about the file.

    Raises ValueError if there are no operations, OSError if the file cannot be written.
    """
    records = _collectives(cluster, job, since_s, registry)
    diagnoses = _read(cluster, {DIAGNOSES: back(since_s)}, registry, job)[DIAGNOSES.name]
    diagnoses.sort(key=lambda diagnosis: diagnosis["number"])
    links = {link for diagnosis in diagnoses for flow in diagnosis["flows"] for link in flow["links"]}
    links |= {link for diagnosis in diagnoses for link in diagnosis["links"]}
    network = _read(cluster, {CONTENTION: back(since_s), LINK_HEALTH: BEGINNING}, registry)
    first_ns = records[0]["begin_ns"]
    windows = [
        window for window in network[CONTENTION.name] if job in window["jobs"] or window["link"] in links
    ]
    health = [
        record
        for record in network[LINK_HEALTH.name]
        if record["since_ns"] >= first_ns and links.intersection(record["links"])
    ]
    count = _write(file, job, first_ns, chrome_events(records, diagnoses, windows, health, first_ns))
    return f"{file}: {count:,} events of {len(records):,} records; open it in https://ui.perfetto.dev"


def _write(file: Path, job: str, from_ns: int, events: Iterable[Mapping[str, Any]]) -> int:
    """Write a file in Chrome's JSON object format, one event per line; return the number of events."""
    count = 0
    head = {"job": job, "clock": "fabric time", "from_ns": from_ns}
    with file.open("w", encoding="utf-8") as out:
        out.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(head)}, "traceEvents": [')
        for event in events:
            out.write((",\n" if count else "\n") + json.dumps(event, allow_nan=False))
            count += 1
        out.write("\n]}\n")
    return count


def export_chakra(
    cluster: KafkaSettings | str,
    job: str,
    folder: Path,
    since_s: float,
    registry: codec.Registry | None = None,
) -> str:
    """Write a job's Chakra traces to a folder, one file per rank. Return a line for display about the files.

    A file has one message per line: the metadata, then the nodes. Raises the same errors as `export_chrome`.
    """
    traces = chakra_nodes(_collectives(cluster, job, since_s, registry))
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job)
    for rank, nodes in traces.items():
        text = "".join(json.dumps(node, allow_nan=False) + "\n" for node in nodes)
        (folder / f"{name}.{rank}.json").write_text(text, encoding="utf-8")
    nodes_total = sum(len(nodes) - 1 for nodes in traces.values())
    return f"{folder}: {nodes_total:,} nodes of {len(traces):,} ranks"
