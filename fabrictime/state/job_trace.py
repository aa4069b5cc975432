"""A job's operations as traces for other tools: Chrome's trace events, and Chakra execution traces.

Perfetto and chrome://tracing read Chrome's format: ranks are processes, operations are slices with their
parts, and verdicts and links are tracks beside the ranks, all in fabric time. A Chakra trace is one list of
nodes per rank, in the JSON form of its protobuf messages (MLCommons, schema 0.0.4). Simulators such as
ASTRA-sim convert it. Pure: takes records, returns events.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fabrictime.state.labels import arrow
from schemas.records import CollectiveBatch, ContentionWindow, Diagnosis, LinkHealth

SPLITS: Final = (
    ("gpu_late_ns", "GPU late"),
    ("peer_late_ns", "peer late"),
    ("network_late_ns", "network"),
    ("flush_ns", "flush"),
)
"""Parts of an operation, in the order in which the trace draws them. Their true order is not known."""
JOB, LINKS, FIRST_RANK = 1, 2, 10
"""Process ids in the trace: of the job, of the links, and of the first rank."""
CHAKRA_VERSION: Final = "0.0.4"
CHAKRA_COLLECTIVES: Final[Mapping[str, int]] = {
    "ALL_REDUCE": 0,
    "REDUCE": 1,
    "ALL_GATHER": 2,
    "GATHER": 3,
    "GATHERV": 3,
    "SCATTER": 4,
    "SCATTERV": 4,
    "BROADCAST": 5,
    "ALL_TO_ALL": 6,
    "REDUCE_SCATTER": 7,
    "BARRIER": 9,
}
"""Chakra's CollectiveCommType number of each collective."""
CHAKRA_MESSAGES: Final = {"SEND": "COMM_SEND_NODE", "RECEIVE": "COMM_RECV_NODE"}

Event = dict[str, Any]
Place = tuple[str, str, str]
"""Host, boot and process."""


class Ranks:
    """The ranks of a job by process. A process has its rank in its largest communicator."""

    def __init__(self) -> None:
        self._largest: dict[Place, tuple[int, int]] = {}

    def take(self, record: CollectiveBatch) -> None:
        """Add the communicators in a record, with the ranks of its process."""
        place = _place(record)
        for communicator in record["communicators"]:
            largest = self._largest.get(place, (0, 0))
            self._largest[place] = max(largest, (communicator["ranks"], communicator["rank"]))

    def of(self, record: CollectiveBatch) -> int:
        """Return the rank of a record's process; 0 if no communicator names it."""
        return self._largest.get(_place(record), (0, 0))[1]


def _place(record: CollectiveBatch) -> Place:
    return record["host"], record["boot"], record["process"]


def operations_of(records: Iterable[CollectiveBatch]) -> Iterator[tuple[CollectiveBatch, int, Any]]:
    """Yield (record, index, operation) once per operation; running operations are published twice."""
    operation_by_identity: dict[Any, tuple[CollectiveBatch, int, Any]] = {}
    for record in records:
        for index, operation in enumerate(record["operations"]):
            if operation["communicator"] >= len(record["communicators"]):
                continue
            communicator = record["communicators"][operation["communicator"]]
            identity = (
                *_place(record),
                communicator["id"],
                operation["function"] if operation["peer"] is not None else "",
                operation["peer"],
                operation["seq"],
            )
            before = operation_by_identity.get(identity)
            if before is None or before[2]["end_ns"] is None:
                operation_by_identity[identity] = (record, index, operation)
    yield from sorted(operation_by_identity.values(), key=lambda item: item[2]["begin_ns"])


# ---------------------------------------------------------------------------------------------- Chrome


def chrome_events(
    records: Iterable[CollectiveBatch],
    diagnoses: Iterable[Diagnosis] = (),
    windows: Iterable[ContentionWindow] = (),
    health: Iterable[LinkHealth] = (),
    from_ns: int = 0,
) -> Iterator[Event]:
    """Yield Chrome trace events. Times are us of fabric time since `from_ns`, so a double keeps every ns."""
    for event in _chrome_events(list(records), diagnoses, windows, health):
        if "ts" in event:
            event["ts"] = (event["ts"] - from_ns) / 1e3
        yield event


def _chrome_events(
    records: list[CollectiveBatch],
    diagnoses: Iterable[Diagnosis],
    windows: Iterable[ContentionWindow],
    health: Iterable[LinkHealth],
) -> Iterator[Event]:
    """Yield Chrome trace events with times in ns."""
    ranks = Ranks()
    for record in records:
        ranks.take(record)
    yield _named("process_name", JOB, 0, "job: verdicts and speed")
    yield from _diagnosis_events(diagnoses)
    yield from _link_events(windows, health)
    named: set[tuple[int, str]] = set()
    for record, index, operation in operations_of(records):
        rank = ranks.of(record)
        pid = FIRST_RANK + rank
        communicator = record["communicators"][operation["communicator"]]
        label = communicator["name"] or communicator["id"]
        if (pid, "") not in named:
            named.add((pid, ""))
            nics = ", ".join(communicator["nics"]) or record["host"]
            yield _named("process_name", pid, 0, f"rank {rank} ({nics})")
        tid = _thread(label)
        if (pid, label) not in named:
            named.add((pid, label))
            yield _named("thread_name", pid, tid, f"communicator {label}")
        yield from _operation_events(record, operation, pid, tid)
        yield from _transfer_events(record, index, pid, named)


def _thread(name: str) -> int:
    """Return a thread number for a name; it is the same in every export."""
    return 1 + zlib.crc32(name.encode()) % 1_000_000


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, begin_ns: int, end_ns: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin_ns,
        "dur": max(0, end_ns - begin_ns) / 1e3,
        "args": args,
    }


def _operation_events(record: CollectiveBatch, operation: Any, pid: int, tid: int) -> Iterator[Event]:
    end_ns = record["end_ns"] if operation["end_ns"] is None else operation["end_ns"]
    end_ns = max(end_ns, operation["begin_ns"])
    yield _slice(
        pid,
        tid,
        str(operation["function"]),
        operation["begin_ns"],
        end_ns,
        seq=operation["seq"],
        bytes=operation["bytes"],
        algorithm=operation["algorithm"],
        protocol=operation["protocol"],
        peer=operation["peer"],
        launch_ns=operation["launch_ns"],
        kernel_ns=operation["kernel_ns"],
        tag=operation["tag"],
        clock=str(record["clock"]),
        bound_ns=record["bound_ns"],
        runs=operation["end_ns"] is None,
        **{name: operation[name] for name, _ in SPLITS},
    )
    at_ns = operation["begin_ns"]
    for name, title in SPLITS:
        if operation[name]:
            until_ns = min(end_ns, at_ns + operation[name])
            yield _slice(pid, tid, title, at_ns, until_ns)
            at_ns = until_ns


def _transfer_events(
    record: CollectiveBatch, index: int, pid: int, named: set[tuple[int, str]]
) -> Iterator[Event]:
    for transfer in record["transfers"]:
        if transfer["operation"] != index:
            continue
        toward = "to" if transfer["sends"] else "from"
        label = f"channel {transfer['channel']} {toward} rank {transfer['peer']}"
        if (pid, label) not in named:
            named.add((pid, label))
            yield _named("thread_name", pid, _thread(label), label)
        end_ns = record["end_ns"] if transfer["end_ns"] is None else transfer["end_ns"]
        values: Mapping[str, Any] = transfer
        splits = {name: values[name] for name, _ in SPLITS}
        yield _slice(
            pid, _thread(label), label, transfer["begin_ns"], end_ns, bytes=transfer["bytes"], **splits
        )


def _diagnosis_events(diagnoses: Iterable[Diagnosis]) -> Iterator[Event]:
    last: tuple[str, str] | None = None
    for diagnosis in diagnoses:
        verdict = (str(diagnosis["verdict"]), diagnosis["subject"])
        at_ns = diagnosis["end_ns"]
        if verdict != last:
            last = verdict
            args = {
                "text": diagnosis["text"],
                "remedy": diagnosis["remedy"],
                "confidence": diagnosis["confidence"],
            }
            name = f"{diagnosis['verdict']} {diagnosis['subject']}".strip()
            yield {"ph": "i", "s": "g", "name": name, "pid": JOB, "tid": 0, "ts": at_ns, "args": args}
        for field, title, scale in (
            ("bus_bps", "bus bandwidth Gbit/s", 1e9),
            ("iteration_ns", "iteration ms", 1e6),
            ("loss_share", "lost %", 0.01),
        ):
            value: Any = diagnosis.get(field)
            if value is not None:
                yield _counter(JOB, title, at_ns, value / scale)


def _counter(pid: int, name: str, at_ns: int, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_ns, "args": {"value": value}}


def _link_events(windows: Iterable[ContentionWindow], health: Iterable[LinkHealth]) -> Iterator[Event]:
    yield _named("process_name", LINKS, 0, "links")
    closed: dict[str, ContentionWindow] = {}
    for window in windows:
        closed[window["window_id"]] = window
        yield _counter(
            LINKS, f"queue kB {arrow(window['link'])}", window["updated_ns"], window["depth_bytes"] / 1e3
        )
    for window in closed.values():
        end_ns = window["updated_ns"] if window["closed_ns"] is None else window["closed_ns"]
        tid = _thread(window["link"])
        yield _named("thread_name", LINKS, tid, arrow(window["link"]))
        yield _slice(
            LINKS,
            tid,
            str(window["kind"]),
            window["opened_ns"],
            end_ns,
            jobs=window["jobs"],
            text=window["text"],
        )
    for state in health:
        yield {
            "ph": "i",
            "s": "p",
            "name": f"{state['state']} {arrow(state['subject'])}",
            "pid": LINKS,
            "tid": 0,
            "ts": state["since_ns"],
            "args": {"text": state["text"]},
        }


# ---------------------------------------------------------------------------------------------- Chakra


def chakra_nodes(records: Iterable[CollectiveBatch]) -> dict[int, list[dict[str, Any]]]:
    """Return the Chakra messages of each rank: metadata, then a node for each operation and the time before
    it.

    Each operation of a rank depends on the operation that began before it. Operations that Chakra does not
    know are left out.
    """
    records = list(records)
    ranks = Ranks()
    for record in records:
        ranks.take(record)
    nodes_by_rank: dict[int, list[dict[str, Any]]] = {}
    free_ns: dict[int, int] = {}
    for record, _, operation in operations_of(records):
        kind, attributes = _chakra_kind(operation)
        if not kind or operation["end_ns"] is None:
            continue
        rank = ranks.of(record)
        nodes = nodes_by_rank.setdefault(rank, [_chakra_metadata(record, rank)])
        idle_ns = operation["begin_ns"] - free_ns.get(rank, operation["begin_ns"])
        if idle_ns > 0:
            begin_ns = operation["begin_ns"] - idle_ns
            nodes.append(_node(len(nodes), "compute", "COMP_NODE", begin_ns, idle_ns, []))
        communicator = record["communicators"][operation["communicator"]]
        attributes += [
            _attribute("is_cpu_op", "boolVal", False),
            _attribute("comm_size", "int64Val", str(operation["bytes"])),
            _attribute("pg_name", "stringVal", communicator["name"] or communicator["id"]),
        ]
        name = f"{operation['function']}_{operation['seq']}"
        duration_ns = max(0, operation["end_ns"] - operation["begin_ns"])
        nodes.append(_node(len(nodes), name, kind, operation["begin_ns"], duration_ns, attributes))
        free_ns[rank] = max(free_ns.get(rank, 0), operation["end_ns"])
    return nodes_by_rank


def _chakra_kind(operation: Any) -> tuple[str, list[dict[str, Any]]]:
    function = str(operation["function"])
    if function in CHAKRA_COLLECTIVES:
        number = str(CHAKRA_COLLECTIVES[function])
        return "COMM_COLL_NODE", [_attribute("comm_type", "int64Val", number)]
    if function in CHAKRA_MESSAGES and operation["peer"] is not None:
        name = "comm_dst" if function == "SEND" else "comm_src"
        return CHAKRA_MESSAGES[function], [_attribute(name, "int32Val", operation["peer"])]
    return "", []


def _chakra_metadata(record: CollectiveBatch, rank: int) -> dict[str, Any]:
    attributes = [_attribute("job", "stringVal", record["job"]), _attribute("rank", "int32Val", rank)]
    return {"version": CHAKRA_VERSION, "attr": attributes}


def _attribute(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"name": name, kind: value}


def _node(
    number: int, name: str, kind: str, begin_ns: int, duration_ns: int, attributes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a node in protobuf's JSON form, where 64-bit numbers are text."""
    return {
        "id": str(number),
        "name": name,
        "type": kind,
        "dataDeps": [str(number - 1)] if number > 1 else [],
        "startTimeMicros": str(begin_ns // 1000),
        "durationMicros": str(duration_ns // 1000),
        "attr": attributes,
    }
