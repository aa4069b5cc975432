"""Files of the golden logs: recorded inputs and expected outputs as compressed JSON lines."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden import names

FOLDER = Path(__file__).resolve().parent
MS, S = 1_000_000, 1_000_000_000

Record = dict[str, Any]


class Row(NamedTuple):
    """One message of the log. `record` None: a tombstone."""

    topic: str
    partition: int
    offset: int
    append_ns: int
    key: str
    record: Record | None


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know as one that it knows."""
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__}: expected a value of a record")


def _whole(value: Record) -> Any:
    return bytes.fromhex(value["$hex"]) if value.keys() == {"$hex"} else value


def write_lines(path: Path, lines: Iterable[Any], preset: int = 9 | lzma.PRESET_EXTREME) -> None:
    """Write JSON lines, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=preset) as out:
        for line in lines:
            out.write(json.dumps(line, separators=(",", ":"), default=_plain, allow_nan=False) + "\n")


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the JSON lines of a compressed file."""
    with lzma.open(path, "rt", encoding="utf-8") as source:
        for line in source:
            yield json.loads(line, object_hook=_whole)


def write_rows(path: Path, rows: Iterable[Row], preset: int = 9 | lzma.PRESET_EXTREME) -> None:
    """Write the messages of one topic, the topic's name first."""
    lines = [[row.partition, row.offset, row.append_ns // MS, row.key, row.record] for row in rows]
    write_lines(path, lines, preset)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the messages of one topic as they were recorded."""
    topic = path.name.removesuffix(".jsonl.xz")
    for partition, offset, append_ms, key, record in read_lines(path):
        yield Row(topic, partition, offset, append_ms * MS, key, record)


# ------------------------------------------------------------------------------------ from a whole recording


class Cut(NamedTuple):
    """What is kept of a topic. Seconds count from the recording's first NIC."""

    from_s: float = -1e9
    to_s: float = 1e9
    every_s: int = 1
    """Keep the messages of one second in so many."""
    keys: frozenset[str] = frozenset()
    """Keep these keys alone; empty: all."""
    rounded: Mapping[str, int] = {}
    """Field at any depth to the decimal places that its values keep, as in `round`: no stage needs more."""


WHOLE = Cut()
AGES = {
    f"{name}_ns": -5
    for name in (
        "first_lost_age",
        "last_lost_age",
        "answered_age",
        "arrived_age",
        "timeout",
        "interval",
        "clock",
        "system",
    )
}
DEPTHS = {
    "depth_bytes": 0,
    "depth_mean_bytes": 0,
    "depth_max_bytes": 0,
    "bound_bytes": 0,
    "utilisation": 3,
    "utilisation_bound": 3,
}
TABLES = {
    "fabric.inventory": WHOLE,
    "fabric.paths": WHOLE,
    "fabric.ways": WHOLE,
    "fabric.config": WHOLE,
    "fabric.flows": WHOLE,
    "fabric.flaps": WHOLE,
    "fabric.contention": WHOLE,
    "fabric.actions": WHOLE,
    "fabric.rounds": WHOLE,
}
SOME_NICS = frozenset(f"h{host}/eth{port}" for host in (1, 5, 17, 25) for port in range(1, 9))
CUTS: dict[str, dict[str, Cut]] = {
    "sim": TABLES
    | {
        "fabric.links": Cut(5, 17.4, rounded=AGES),
        "fabric.clock.offsets": Cut(every_s=5),
        "fabric.clock.fits": Cut(3, 6),
        "fabric.probes": Cut(4, 5.5, keys=SOME_NICS),
        "fabric.path-queueing": Cut(26, 26.3),
        "fabric.queues": Cut(24.5, 35, rounded=DEPTHS),
    },
    "fabric": TABLES
    | {
        "fabric.links": Cut(rounded=AGES),
        "fabric.clock.offsets": WHOLE,
        "fabric.clock.fits": Cut(70, 100),
        "fabric.probes": Cut(70, 76),
        "fabric.delays": Cut(70, 82, keys=frozenset({"h1/eth1", "h5/eth1"})),
        "fabric.path-queueing": Cut(147, 152),
        "fabric.queues": Cut(rounded=DEPTHS),
    },
}


def cut(raw: Path, case: str) -> None:
    """Thin a whole recording to the inputs of a case."""
    inputs = FOLDER / case / "inputs"
    shutil.rmtree(FOLDER / case, ignore_errors=True)
    begin_ns = min(row.append_ns for row in read_rows(raw / "fabric.inventory.jsonl.xz"))
    for recorded, how in CUTS[case].items():
        topic = names.TOPICS.get(recorded, recorded)
        rows = [
            row._replace(record=_rounded(row.record, how.rounded) if how.rounded else row.record)
            for row in read_rows(raw / f"{topic}.jsonl.xz")
            if begin_ns + how.from_s * S <= row.append_ns < begin_ns + how.to_s * S
            and row.append_ns // S % how.every_s == 0
            and (not how.keys or row.key in how.keys)
        ]
        rows.sort(key=lambda row: (row.append_ns, row.partition, row.offset))
        path = inputs / f"{topic}.jsonl.xz"
        write_rows(path, rows)
        print(f"{path.name}: {len(rows)} messages, {path.stat().st_size} bytes")
    if (raw / "topology.json").exists():
        shutil.copy(raw / "topology.json", FOLDER / case / "topology.json")


def _rounded(value: Any, places: Mapping[str, int], name: str = "") -> Any:
    if isinstance(value, dict):
        return {field: _rounded(of, places, field) for field, of in value.items()}
    if isinstance(value, list):
        return [_rounded(each, places, name) for each in value]
    if name in places and isinstance(value, int | float) and value > 0:
        return round(value, places[name])
    return value


def write_expected(case: str, outputs: Mapping[str, Iterable[Any]]) -> None:
    """Write the expected outputs of a case, by stage."""
    for stage, lines in outputs.items():
        path = FOLDER / case / "expected" / f"{stage}.jsonl.xz"
        write_lines(path, lines)
        print(f"{stage}: {path.stat().st_size} bytes")
