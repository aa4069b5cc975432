"""The interface of stages and operators: all that a runner needs to run the pipeline's logic.

A stage is a declaration; an operator is its state for the partitions of one owner. Neither uses Kafka,
asyncio, a clock, a file or a thread. Three kinds of runners exist: the worker (`streams/runtime/faust/`), the
`LogRunner`s over a recorded log, and the `SimRunner` over a simulated fleet.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from schemas import codec
from schemas.kafka import partition_of
from schemas.kafka.message import Message, Place
from schemas.kafka.start import Start
from schemas.topics import R, Topic
from schemas.unexpected import DATA_ERRORS, refusal
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.settings import StreamSettings
from streams.runtime.units import NS_PER_MS

log = logging.getLogger(__name__)

NEVER_NS: Final = 2**62
"""A time later than any time of a log."""


class Order(Enum):
    """The time and the order in which operators take a stage's input messages."""

    TIMED = "timed"
    """Once the log's clock is later by a set time; sorted by (log time, topic, partition, offset)."""
    AS_READ = "as read"
    """At once; between two advances, sorted by (input as declared, partition, offset)."""


class Moment(NamedTuple):
    """A log time, with the offset from it to fabric time."""

    log_ns: int
    """Log time: append time without the steps of the log's clock."""
    offset_ns: int
    """Fabric time minus log time."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The partitions of a stage's owner topic that belong to one worker, from assignment to revocation."""

    epoch: int
    """Log time at which the owner begins, ms; each later owner has a greater epoch."""
    partitions: frozenset[int]
    partition_count: int
    """Number of partitions of the owner topic."""
    settings: StreamSettings
    registry: codec.Registry | None = None
    committed: Mapping[int, int] = field(default_factory=dict)
    """Maps partition to the first offset that this owner reads; uncommitted partitions are missing."""
    places: Sequence[Place] = ()
    """The partitions of the inputs that this owner reads."""

    def owns(self, key: str) -> bool:
        """Return whether the messages of a key belong to this owner's partitions."""
        return partition_of(key, self.partition_count) in self.partitions


@dataclass(frozen=True, slots=True)
class Input:
    """A topic from which a stage's operators take messages, and where reading starts."""

    topic: Topic
    start: Callable[[int, FabricTables], Start] | None = None
    """Returns where a new owner starts, given log time; None: at the last owner's committed position."""
    skip_after_ns: int = NEVER_NS
    """Age above which messages are skipped while newer ones wait, ns: old evidence is useless."""
    is_owned: bool = False
    """Whether an owner reads only the partitions with the numbers that it owns."""
    is_tapped: bool = False
    """Whether another stage of the worker, which reads these messages anyway, passes them on."""
    is_needed: Callable[[Operator, FabricTables], bool] | None = None
    """Returns whether messages are needed now; None: always. A separate reader reads such an input."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Published records of one topic, from which a new owner continues."""

    topic: Topic
    start: Start | Callable[[int], Start]
    """Where reading starts; a function of the log time at the owner's begin if it depends on that."""
    last_per_key: bool = False
    """Whether only the newest message of each key is restored."""


Past = Mapping[str, Sequence[Message]]
"""Maps topic to the messages of its `Restore`, sorted by partition and offset."""


@dataclass(slots=True)
class Output:
    """A message to publish, or rows to store. Without record, body and rows it is a tombstone."""

    topic: Topic
    key: str
    record: Any = None
    """A record of the topic's type."""
    body: bytes | None = None
    """The encoded record, if the operator has encoded it."""
    text: str = ""
    """A line for the service's log."""
    rows: Mapping[str, Any] | None = None
    """Maps table to rows for the stage's store, as Arrow tables; `key` is then the token of their insert."""

    def value(self, registry: codec.Registry | None = None) -> bytes | None:
        """Return the encoded value of the message; it is encoded only once."""
        if self.body is None and self.record is not None:
            self.body = codec.encode(self.topic.type, self.record, registry)
        return self.body


Work = Callable[[], Sequence[Output]]
"""The slow part of an advance; returns its outputs. It reads no table, so it may run in a thread."""


class Store(Protocol):
    """Stores the rows of a stage's outputs; only one thread at a time may call it."""

    def insert(self, table: str, rows: Any, token: str) -> None:
        """Insert rows into a table, and return once they are stored.

        A repeated insert with the same `token` stores nothing. Raises OSError while the store is unavailable,
        BadRecord for rows that it will never accept.
        """

    def forget(self) -> None:
        """Note that the last failed insert will not be repeated here."""


class Operator:
    """The state of one stage for one partition of its owner topic, or for all partitions of an owner."""

    adapts: ClassVar[bool] = False
    """Whether `keep_up` has any effect."""

    def __init__(self) -> None:
        self.rejected: list[tuple[Message, Exception]] = []
        """Messages that could not be used; the runner publishes and clears them."""
        self.failed: list[tuple[str, Exception]] = []
        """Keys whose evaluation failed, with the error; the runner publishes and clears them."""
        self.late = 0
        """Number of messages that came after later ones were processed: a replay may differ."""
        self.behind: frozenset[str] = frozenset()
        """Topics of inputs with `Input.is_needed` not yet read to their ends; the runner sets it."""
        self.offset_of: Callable[[int], int] = lambda log_offset_ns: log_offset_ns
        """Converts fabric time minus append time into fabric time minus log time, ns; the runner sets it."""
        self.moment = Moment(0, 0)
        """The moment of the next advance; the runner sets it before `take`."""
        self.end_offset: int | None = None
        """Last known end offset of the owner's partition; the runner sets it, None in a replay."""

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Restore the state from the records that earlier owners published."""

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Take the next messages of the inputs. Messages of a partition come in order.

        A message that cannot be used is rejected; the other messages are still taken.
        """
        for message in messages:
            try:
                self.take_one(message, tables)
            except DATA_ERRORS as error:
                self.rejected.append((message, error))

    def take_one(self, message: Message, tables: FabricTables) -> None:
        """Take the next message. Raises one of `DATA_ERRORS` if the message cannot be used."""
        raise NotImplementedError

    def due_ns(self) -> int:
        """Return the log time, ns, at which `advance` is next needed; 0: at once."""
        raise NotImplementedError

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        """Advance to a moment; return the outputs, or slow work that returns the outputs.

        `moment` is later than the newest message only if the runner has read to the end of the inputs. Until
        returned work has ended, the runner calls no other method.
        """
        raise NotImplementedError

    def needed_from(self) -> int:
        """Return the first offset of the owner's partition that a new owner must take again.

        The runner commits this offset once the outputs of all earlier advances are acknowledged.
        """
        return NEVER_NS

    def status(self) -> str:
        """Return a line for the worker's status; empty if the operator has no problem."""
        return ""

    def close(self, tables: FabricTables) -> None:
        """Release the operator's views of tables, because its partition was revoked."""

    def keep_up(self, spent_ns: int, waited_ns: int) -> None:
        """Adapt to the machine's speed. `spent_ns`: duration of work; `waited_ns`: age of messages."""

    def level(self) -> str:
        """Return the level of detail that `keep_up` chose; a replay passes it to `set_level`."""
        return ""

    def set_level(self, level: str) -> None:
        """Set the level of detail that `keep_up` chose in the run that is replayed."""


class Stage(ABC):
    """One stage: its inputs and outputs, and a factory for its operators."""

    name: str
    owner: Topic
    """The topic whose partitions decide ownership: their owner owns the stage's keys of that partition."""
    inputs: tuple[Input, ...]
    outputs: ClassVar[tuple[Topic, ...]]
    store: Store | None = None
    """Stores the rows of outputs; None if outputs are messages."""
    order: ClassVar[Order] = Order.AS_READ
    per_partition: ClassVar[bool] = True
    """Whether each partition has its own operator; else one serves all partitions of an owner."""
    uses_append_time: ClassVar[bool] = False
    """Whether log time follows steps of the log's clock, because windows are cut by append time."""
    reject_reader: ClassVar[str] = "solve"
    """Value of `Reject.reader` for the messages that operators reject."""

    tables: ClassVar[tuple[Topic, ...]] = ()
    """Topics of the tables that the operators look up; a replay needs them. A worker has all tables."""
    reads_to_ends: ClassVar[bool] = False
    """Whether the runner reads all inputs to their present ends before an advance."""

    def epoch(self, log_ns: int, past: Past, registry: codec.Registry | None = None) -> int:
        """Return the epoch, ms, of an owner that begins at `log_ns` and restores `past`."""
        return log_ns // NS_PER_MS

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the published records from which a new owner continues.

        `partition_count`: number of partitions of the owner topic.
        """
        return ()

    @abstractmethod
    def make(self, owner: Owner, partition: int, tables: FabricTables) -> Operator:
        """Return the operator of a partition, or of all partitions of the owner if `partition` is -1."""


def records_of(
    past: Past,
    topic: Topic[R],
    registry: codec.Registry | None = None,
    check: Callable[[R, int], R] | None = None,
) -> list[R]:
    """Return the records of a restored topic; omit records that cannot be used.

    `check` is called with a record and its append time; it raises BadRecord if the record is implausible.
    """
    records: list[R] = []
    rejected = 0
    for message in past.get(topic.name, ()):
        if message.value is None:
            continue
        try:
            record = message.decoded(topic, registry)
            records.append(record if check is None else check(record, message.append_ns))
        except DATA_ERRORS as error:
            last, rejected = refusal(error), rejected + 1
    if rejected:
        log.warning("%s: ignored %d bad records, the last: %s", topic.name, rejected, last)
    return records
