"""Replay of the golden logs: recorded rows with today's names in, the outputs of each stage out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from schemas.kafka.message import Message
from tests.golden import goldens, names, stages
from tests.golden.goldens import FOLDER, Record

RELATIVE, ABSOLUTE = 1e-9, 1e-9
LONG = 64
"""Columns of more numbers than this are compared by their length and sums."""
TEXT, NO_TEXT = "$text", "$none"
TABLES_FIRST = (
    "fabric.inventory",
    "fabric.config",
    "fabric.paths",
    "fabric.ways",
    "fabric.flows",
    "fabric.clock.offsets",
)

LEFT_OUT = {("sim", "alerts"): {"fabric.paths"}}
"""(case, stage) to recorded topics that it goes without: 256 NICs take too long."""

NAMED = (dict, list, str)
"""Types that hold names."""
Path = tuple[str, ...]


# ------------------------------------------------------------------------------------ names


class Table:
    """One table of `names`, for one topic: recorded path to what the table holds."""

    def __init__(self, table: Mapping[str, Any], topic: str) -> None:
        self.exact: dict[Path, Any] = {}
        self.anywhere: dict[str, Any] = {}
        for name in ("*", topic):
            for path, value in _items(table.get(name, {})):
                if path.startswith("**."):
                    self.anywhere[path[3:]] = value
                else:
                    self.exact[tuple(path.split("."))] = value

    def __bool__(self) -> bool:
        return bool(self.exact or self.anywhere)

    def get(self, path: Path) -> Any:
        """Return what the table holds for a path, or None."""
        return self.exact.get(path, self.anywhere.get(path[-1]) if path else None)


def _items(found: Mapping[str, Any] | set[str]) -> Iterable[tuple[str, Any]]:
    return found.items() if isinstance(found, Mapping) else [(path, True) for path in found]


class Names:
    """The renames of one recorded topic."""

    def __init__(self, topic: str) -> None:
        self.topic = names.TOPICS.get(topic, topic)
        self._fields, self._symbols = Table(names.FIELDS, topic), Table(names.SYMBOLS, topic)
        self._prose, self._ids = Table(names.PROSE, topic), Table(names.IDS, topic)
        self._ignored, self._forms = Table(names.IGNORED, topic), Table(names.FORMS, topic)
        self._split = {
            tuple(path.split(".")): fraction for path, fraction in names.SPLIT.get(topic, {}).items()
        }
        self._renames = bool(self._fields or self._symbols or names.TOPICS)
        self._steps: dict[Path, dict[str, tuple[str, Path]]] = {}
        """By recorded path of a record, then by field: see `_step`."""

    def now(self, record: Record) -> Record:
        """Return a recorded record with today's names."""
        return self._now(record, ()) if self._renames else record

    def split(self, value: Any, path: Path = ()) -> Any:
        """Return a record, with today's names, whose recorded floats are whole numbers and fractions."""
        if isinstance(value, list):
            return [self.split(each, path) for each in value]
        if not isinstance(value, dict) or not self._split:
            return value
        made = {name: self.split(of, (*path, name)) for name, of in value.items()}
        for at, fraction in self._split.items():
            if at[:-1] == path and at[-1] in made:
                whole = round(made[at[-1]])
                made |= {at[-1]: whole, fraction: made[at[-1]] - whole}
        return made

    def _now(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            of_path = self._steps.setdefault(path, {})
            made = {}
            for name, of in value.items():
                new, at = of_path.get(name) or of_path.setdefault(name, self._step(path, name))
                made[new] = self._now(of, at) if isinstance(of, NAMED) else of
            return made
        if isinstance(value, list):
            return [self._now(each, path) if isinstance(each, NAMED) else each for each in value]
        if isinstance(value, str):
            symbols = self._symbols.get(path)
            if symbols is not None:
                return symbols(value) if callable(symbols) else symbols.get(value, value)
            topic, mark, rest = value.partition("/")
            return names.TOPICS.get(topic, topic) + mark + rest
        return value

    def _step(self, path: Path, name: str) -> tuple[str, Path]:
        """Return today's name of a field, and the field's recorded path."""
        at = (*path, name)
        return self._fields.get(at) or name, at

    def canonical(self, record: Record, ids: Callable[[str], str], renamed: bool) -> Record:
        """Return a record as it is compared. `renamed`: whether it has today's names already."""
        made: Record = self._canonical(record, (), ids, renamed)
        return made

    def _canonical(self, value: Any, path: Path, ids: Callable[[str], str], renamed: bool) -> Any:
        """Follow the value with `path`, the recorded path of it."""
        form = self._forms.get(path) if renamed and value is not None else None
        if form is not None:
            value = form(value)
        if isinstance(value, dict):
            value = self._joined(value, path)
            if renamed:
                back = {self._fields.exact[at]: at[-1] for at in self._fields.exact if at[:-1] == path}
                back |= {new: old for old, new in self._fields.anywhere.items() if new not in back}
            else:
                back = {}
            made = {}
            for name, of in value.items():
                at = (*path, back.get(name, name))
                if not self._ignored.get(at):
                    made[name] = self._canonical(of, at, ids, renamed)
            return made
        if isinstance(value, list):
            if len(value) > LONG and all(isinstance(each, int | float) for each in value):
                return {"elements": len(value), "sum": sum(value), "turned": _turned(value)}
            return [self._canonical(each, path, ids, renamed) for each in value]
        if isinstance(value, str):
            if self._prose.get(path):
                return TEXT if value else NO_TEXT
            if self._ids.get(path):
                return ids(value)
        return value

    def _joined(self, value: Record, path: Path) -> Record:
        """Return a record whose fractions are added to their whole numbers."""
        made = dict(value)
        for at, fraction in self._split.items():
            if at[:-1] == path and fraction in made:
                made[at[-1]] += made.pop(fraction)
        return made


def _turned(values: list[int | float]) -> int | float:
    """Return a sum that depends on the order of the values."""
    return sum((number % 97 + 1) * value for number, value in enumerate(values))


class Labels:
    """A label for each id, by the order in which they first appear."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the label of an id; an empty id stays empty."""
        return self._known.setdefault(name, f"#{len(self._known) + 1}") if name else ""


# ------------------------------------------------------------------------------------ inputs


def rows_of(case: str, stage: str) -> list[Message]:
    """Return the recorded messages that a stage reads, in log order, with today's names.

    Messages of one millisecond get a nanosecond each, in an order that no rename changes, since some stages
    order their inputs by the names of topics.
    """
    work, left_out = stages.STAGES[stage], LEFT_OUT.get((case, stage), set())
    tables_first = {names.TOPICS.get(topic, topic): number for number, topic in enumerate(TABLES_FIRST)}
    recordings: list[tuple[tuple[Any, ...], Message]] = []
    for path in sorted((FOLDER / case / "inputs").glob("*.jsonl.xz")):
        recorded = path.name.removesuffix(".jsonl.xz")
        topic = Names(recorded).topic
        if topic in work.inputs and recorded not in left_out:
            first = tables_first.get(topic, len(tables_first))
            for m in _messages_of(path):
                recordings.append(((m.append_ns, first, recorded, m.partition, m.offset), m))
    recordings.sort(key=lambda order_and_message: order_and_message[0])
    rows, last_ns = [], -1
    for _, m in recordings:
        last_ns = m.append_ns if work.times_are_exact else max(m.append_ns, last_ns + 1)
        rows.append(Message(last_ns, m.topic, m.partition, m.offset, m.key, m.value))
    return rows


@cache
def _messages_of(path: FilePath) -> list[Message]:
    """Return the recorded messages of a topic with today's names, which several stages read."""
    of_topic = Names(path.name.removesuffix(".jsonl.xz"))
    return [
        stages.message_of(
            row.append_ns,
            of_topic.topic,
            row.partition,
            row.offset,
            row.key,
            None if row.record is None else of_topic.split(of_topic.now(row.record)),
        )
        for row in goldens.read_rows(path)
    ]


def run(case: str, stage: str) -> list[stages.Keyed]:
    """Return what a stage makes of a case's inputs, with today's names."""
    topology = stages.topology_of(FOLDER / case / "topology.json")
    made = stages.STAGES[stage].run(rows_of(case, stage), topology)
    return [(topic, key, None if record is None else plain(record)) for topic, key, record in made]


def plain(value: Any) -> Any:
    """Return a value as JSON would hold it."""
    if isinstance(value, dict):
        return {name: plain(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


# ------------------------------------------------------------------------------------ outputs

Canonical = dict[str, list[tuple[str, Record | None]]]
"""Topic to (key, record) in order."""


def canonical(found: Iterable[stages.Keyed]) -> Canonical:
    """Return a replay's outputs as they are compared."""
    recorded = {new: old for old, new in names.TOPICS.items()}
    of_topic: dict[str, Names] = {}
    ids = Labels()
    made: Canonical = defaultdict(list)
    for topic, key, record in found:
        how = of_topic.setdefault(topic, Names(recorded.get(topic, topic)))
        made[topic].append((key, None if record is None else how.canonical(record, ids, True)))
    return dict(made)


def expected(case: str, stage: str) -> Canonical:
    """Return the recorded outputs of a stage, with today's names."""
    made: Canonical = defaultdict(list)
    of_topic: dict[str, Names] = {}
    for topic, key, record in goldens.read_lines(FOLDER / case / "expected" / f"{stage}.jsonl.xz"):
        how = of_topic.setdefault(topic, Names(topic))
        made[how.topic].append((key, None if record is None else how.now(record)))
    return dict(made)


def outputs(case: str) -> dict[str, Iterator[Any]]:
    """Return, by stage, the lines of the expected outputs as the code makes them today."""
    return {
        stage: (
            [topic, key, record]
            for topic, rows in sorted(canonical(run(case, stage)).items())
            for key, record in rows
        )
        for stage in stages_of(case)
    }


def stages_of(case: str) -> list[str]:
    """Return the stages for which a case holds inputs."""
    topics = {Names(p.name.removesuffix(".jsonl.xz")).topic for p in (FOLDER / case / "inputs").glob("*.xz")}
    return [stage for stage, work in stages.STAGES.items() if work.inputs[-1] in topics]


def differences(want: Any, have: Any, where: str = "") -> Iterator[str]:
    """Yield how two values differ: floats within a relative tolerance, all else exactly."""
    if isinstance(want, dict) and isinstance(have, dict):
        for name in sorted((want.keys() | have.keys()) - names.SIZES):
            if name not in have:
                yield f"{where}.{name}: missing"
            elif name not in want and name not in names.ADDED:
                yield f"{where}.{name}: not expected"
            elif name in want:
                yield from differences(want[name], have[name], f"{where}.{name}")
    elif isinstance(want, list | tuple) and isinstance(have, list | tuple):
        if len(want) != len(have):
            yield f"{where}: {len(have)} elements, expected {len(want)}"
        for number, (a, b) in enumerate(zip(want, have, strict=False)):
            yield from differences(a, b, f"{where}[{number}]")
    elif isinstance(want, float) or isinstance(have, float):
        numbers = isinstance(want, int | float) and isinstance(have, int | float)
        if not numbers or not math.isclose(want, have, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{where}: {have!r}, expected {want!r}"
    elif want != have:
        yield f"{where}: {have!r}, expected {want!r}"
