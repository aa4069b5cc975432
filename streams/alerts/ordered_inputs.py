"""Takes the inputs of alerts in the order of the log, and returns the alerts that follow from them.

`AlertInputs` accepts messages of the topics of `MAIN`, and `PathDelays`, from any partitions in any order. A
message waits until the log's clock has passed its log time. Then messages are processed by (log time, topic,
partition, offset). So a live worker, a restarted one and a replay raise the same alerts. Thresholds, latency
rules, inventory and routes are messages too; only the topology file is not in the log.

Latency rules need delays, of which there may be many. Delays are ordered separately, so that a worker that
must catch up on them delays no other alert.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.messages import check_key
from schemas.records import Alert, AlertKind, AlertState, ClockOffsets
from schemas.topics import (
    ALERTS,
    CLOCK_OFFSETS,
    CONFIG,
    CONTENTION,
    DELAYS,
    DIAGNOSES,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATHS,
    R,
    Topic,
)
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS, refusal
from schemas.validation import validate_link_event, validate_offsets
from streams.alerts.book import Published
from streams.alerts.latency_slo import groups_of
from streams.alerts.rules import JOB_SILENT_NS, LOOKBACK_MARGIN_S, LOOKBACK_NS
from streams.alerts.shard_alerts import ShardAlerts
from streams.alerts.sources.simulation import FleetPace
from streams.alerts.wiring import Wiring
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.live_config import LiveConfig
from streams.runtime.operator import Moment, Operator, Output, Past, records_of
from streams.runtime.tables import Inventory
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S

WHOLE: Final[tuple[Topic, ...]] = (CONFIG, INVENTORY, PATHS)
"""Topics that are read from their beginning."""
MAIN: Final[tuple[Topic, ...]] = (*WHOLE, LINK_HEALTH, CONTENTION, CLOCK_OFFSETS, LINKS, DIAGNOSES)
DIAGNOSIS_HEAD: Final = "bound_ns"
"""Last field of a diagnosis before its fields by rank and by flow."""
REJECTED_ELSEWHERE: Final = frozenset(
    {CONFIG.name, INVENTORY.name, PATHS.name, CLOCK_OFFSETS.name, LINKS.name}
)
"""Topics whose invalid messages are rejected by another reader."""


def read_from(now_ns: int, thresholds: Thresholds, delays_s: float = 0.0) -> dict[str, int]:
    """Return, by topic, the append time, ns, from which an owner that begins at `now_ns` must read.

    Of `fabric.link-health` it also needs each key's last record before that time. `delays_s`: longest time
    for which a latency rule may be violated before its alert.
    """
    events_s = max(thresholds["alert_agent_s"], thresholds["alert_storm_s"])
    dated_s = max(events_s, thresholds["alert_miswired_s"], thresholds["alert_clocks_s"])
    back_s: dict[Topic, float] = {
        LINKS: events_s + LOOKBACK_MARGIN_S,
        # clock offsets date the detections
        CLOCK_OFFSETS: dated_s + thresholds["alert_clear_s"] + 2 * LOOKBACK_MARGIN_S,
        DELAYS: delays_s + LOOKBACK_MARGIN_S,
        DIAGNOSES: JOB_SILENT_NS / NS_PER_S + LOOKBACK_MARGIN_S,
    }
    starts_ns = {topic.name: now_ns - round(seconds * NS_PER_S) for topic, seconds in back_s.items()}
    starts_ns |= dict.fromkeys((LINK_HEALTH.name, CONTENTION.name), now_ns - LOOKBACK_NS)
    return starts_ns | dict.fromkeys((topic.name for topic in WHOLE), 0)


class AlertInputs(Operator):
    """Raises the alerts of the shards for which `owned` returns True.

    `past`: the alerts published before. `starts_ns`: by topic, the log time from which it is read.
    `log_offset_ns`: fabric time minus append time, until a clock record states it.
    """

    def __init__(
        self,
        past: Iterable[Alert] = (),
        owned: Callable[[str], bool] | None = None,
        *,
        default_shard: str = "fabric",
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        window_ns: int = NS_PER_S,
        starts_ns: Mapping[str, int] | None = None,
        log_offset_ns: int = 0,
    ) -> None:
        super().__init__()
        self.config, self._latency_config = LiveConfig(), LiveConfig()
        self.inventory, self._members = Inventory(default_shard), Inventory(default_shard)
        self.wiring = Wiring(topology)
        self.shards: dict[str, ShardAlerts] = {}
        self._past: list[Alert] = []
        self._owned = owned or (lambda shard: True)
        self._registry = registry
        self._window_ns, self._log_offset_ns, self._starts_ns = window_ns, log_offset_ns, starts_ns or {}
        self._processors: dict[str, Callable[[Message, Published], None]] = {
            CONFIG.name: self._process_config,
            INVENTORY.name: self._process_nic,
            PATHS.name: self._process_paths,
            LINK_HEALTH.name: self._process_health,
            CONTENTION.name: self._process_contention,
            CLOCK_OFFSETS.name: self._process_clocks,
            LINKS.name: self._process_event,
            DIAGNOSES.name: self._process_diagnosis,
        }
        self._main: list[Message] = []
        self._delays: list[Message] = []
        self._last: Message | None = None
        self._rules_in_force, self._delays_from_ns = False, self._starts_ns.get(DELAYS.name, 0)
        self._rules_changed_ns = 0
        """Append time of the last change of latency rules: earlier delays do not count."""
        self._recover(past)

    def _recover(self, past: Iterable[Alert]) -> None:
        """Restore the alerts published before."""
        self._past = list(past)
        for shard in sorted({r["shard"] for r in self._past if r["state"] == AlertState.RAISED}):
            self._shard(shard)
        for r in self._past:
            if (
                r["kind"] == AlertKind.MISWIRED
                and r["state"] == AlertState.RAISED
                and r["shard"] in self.shards
            ):
                names, active_ns = [*r["nics"], *r["grouped"]], r["updated_ns"] - self._log_offset_ns
                self.wiring.recover(r["shard"], r["subject"], names, active_ns)

    def wants_delays(self, nic: str) -> bool:
        """Return whether any latency rule uses a NIC's delays."""
        shard = self.shards.get(self._members.member(nic).shard)
        return shard is not None and shard.wants_delays(nic)

    def open_ids(self) -> list[str]:
        """Return the ids of the active alerts."""
        return sorted(alert for shard in self.shards.values() for alert in shard.open_ids())

    # --------------------------------------------------------------------------------------- operator

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Restore the alerts published before, and the state of links that changed long ago."""
        self._recover(records_of(past, ALERTS, self._registry))
        for message in past.get(LINK_HEALTH.name, ()):
            if message.log_ns < self._starts_ns.get(LINK_HEALTH.name, 0):
                self.add(message)

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Add messages, except delays that no latency rule uses."""
        for message in messages:
            if message.topic != DELAYS.name or self._may_want(message.key, tables):
                self.add(message)

    def _may_want(self, nic: str, tables: FabricTables) -> bool:
        """Return whether a present rule, or a rule still under evaluation, may use a NIC's delays."""
        groups = groups_of(tables.inventory.member(nic))
        rules = tables.config.latency_rules()
        has_rule = any(rule["from_group"] in groups or rule["to_group"] in groups for rule in rules)
        return has_rule or self.wants_delays(nic)

    def due_ns(self) -> int:
        """Return 0: each advance has due messages to process."""
        return 0

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Process the messages that are due; return the alerts to publish."""
        self.wiring.topology = tables.topology
        alerts = self.evaluate(moment.log_ns)
        if DELAYS.name not in self.behind:
            alerts += self.evaluate_delays(moment.log_ns)
        return [
            Output(ALERTS, key, record, text=f"{record['state']} {record['alert_id']}: {record['text']}")
            for key, record in alerts
        ]

    # --------------------------------------------------------------------------------------- order

    def add(self, message: Message) -> None:
        """Add a message of `MAIN` or `fabric.delays`; it is processed once the log's clock has passed it."""
        if message.topic == DELAYS.name:
            heapq.heappush(self._delays, message)
            return
        heapq.heappush(self._main, message)
        if message.topic in (CONFIG.name, INVENTORY.name):
            heapq.heappush(self._delays, message)
        if self._last is not None and message < self._last:
            self.late += 1

    def evaluate(self, to_ns: int) -> Published:
        """Process messages up to `to_ns`, and evaluations due by then; return the alerts to publish."""
        out: Published = []
        while self._main and self._main[0].log_ns <= to_ns:
            message = heapq.heappop(self._main)
            self._last = message if self._last is None else max(message, self._last)
            self._evaluate_wiring(message.log_ns - 1, out)
            try:
                self._processors[message.topic](message, out)
            except DATA_ERRORS as error:
                self.rejected.append((message, refusal(error)))
        self._evaluate_wiring(to_ns, out)
        for name in sorted(self.shards):
            try:
                out += self.shards[name].evaluate(to_ns)
            except DATA_ERRORS as error:
                self.failed.append((name, error))
        return out

    def evaluate_delays(self, to_ns: int) -> Published:
        """Evaluate the latency rules with the delays up to `to_ns`; return the alerts to publish."""
        out: Published = []
        while self._delays and self._delays[0].log_ns <= to_ns:
            message = heapq.heappop(self._delays)
            if message.log_ns >= self._delays_from_ns:
                self._start_rules(out)
            try:
                self._process_delays(message, out)
            except DATA_ERRORS as error:
                self.rejected.append((message, refusal(error)))
        if to_ns >= self._delays_from_ns:
            self._start_rules(out)
        return out

    def _process_delays(self, message: Message, out: Published) -> None:
        if message.topic == CONFIG.name:
            self._rules_changed_ns = max(self._rules_changed_ns, message.log_ns)
            if self._update(self._latency_config, message) and self._rules_in_force:
                self._set_rules(out)
        elif message.topic == INVENTORY.name:
            self._update(self._members, message)
        elif message.log_ns >= self._rules_changed_ns and message.value is not None:
            if not self.wants_delays(message.key):
                return
            record = self._decoded(message, DELAYS)
            shard = None if record is None else self._shard(record["shard"])
            if record is not None and shard is not None:
                out += shard.ingest_delays(record)

    def _start_rules(self, out: Published) -> None:
        """Apply the latency rules once all earlier configuration has been processed.

        This clears the alert of a rule that was violated and has since been removed.
        """
        if not self._rules_in_force:
            self._rules_in_force = True
            self._set_rules(out)

    def _set_rules(self, out: Published) -> None:
        rules = self._latency_config.latency_rules()
        for name in self._members.shards() if rules else ():
            self._shard(name)
        for name in sorted(self.shards):
            out += self.shards[name].set_latency_rules(rules)

    # --------------------------------------------------------------------------------------- one message

    def _evaluate_wiring(self, to_ns: int, out: Published) -> None:
        self.wiring.thresholds = self.config.thresholds()
        while (due_ns := self.wiring.due_ns) <= to_ns:
            for name, detection in self.wiring.evaluate(due_ns):
                shard = self._shard(name)
                if shard is not None:
                    out += shard.ingest_detection(detection)

    def _process_config(self, message: Message, out: Published) -> None:
        self._update(self.config, message)
        for shard in self.shards.values():
            out += shard.evaluate(message.log_ns - 1)
            shard.thresholds = self.config.thresholds()

    def _process_nic(self, message: Message, out: Published) -> None:
        record = self._decoded(message, INVENTORY)
        if record is not None or message.value is None:
            self._update(self.inventory, message)
            self.wiring.ingest_nic(message.key, record, message.log_ns)
            self._process_pace(None if record is None else record["shard"], message.log_ns, out)
            shard = None if record is None else self._shard(record["shard"])
            for alerts in self.shards.values() if record is None else (shard,):
                if alerts is not None:
                    out += alerts.ingest_nic(message.key, record, message.log_ns)

    def _process_pace(self, name: str | None, append_ns: int, out: Published) -> None:
        """Pass the simulation pace of shard `name` (None: of all shards), one of whose NICs was announced."""
        for shard_name in self.shards if name is None else (name,):
            pace = self.inventory.simulated.pace(shard_name)
            shard = self._shard(shard_name) if pace is not None else self.shards.get(shard_name)
            if shard is not None:
                fleet = None if pace is None else FleetPace(pace, self.inventory.simulated.nics(shard_name))
                out += shard.ingest_pace(fleet, append_ns)

    def _process_paths(self, message: Message, out: Published) -> None:
        record = self._decoded(message, PATHS)
        if record is not None or message.value is None:
            self.wiring.ingest_paths(message.key, record, message.log_ns)

    def _process_health(self, message: Message, out: Published) -> None:
        record = self._decoded(message, LINK_HEALTH)
        if record is not None:
            shard = self._shard(record["shard"])
            if shard is not None:
                out += shard.ingest_health(message.key, record, message.log_ns)
        elif message.value is None:
            for name in sorted(self.shards):
                out += self.shards[name].ingest_health(message.key, None, message.log_ns)

    def _process_contention(self, message: Message, out: Published) -> None:
        record = self._decoded(message, CONTENTION)
        shard = None if record is None else self._shard(record["shard"])
        if record is not None and shard is not None:
            out += shard.ingest_contention(record, message.log_ns)

    def _process_diagnosis(self, message: Message, out: Published) -> None:
        if message.value is None:
            return
        try:
            head = codec.decode_head(message.value, DIAGNOSES.record, DIAGNOSIS_HEAD, self._registry)
            check_key(DIAGNOSES, message.key.encode(), head)
        except codec.BadRecord as error:
            self.rejected.append((message, error))
            return
        shard = self._shard(head["shard"])
        if shard is not None:
            out += shard.ingest_diagnosis(head, message.log_ns)

    def _process_clocks(self, message: Message, out: Published) -> None:
        def validate(record: ClockOffsets) -> ClockOffsets:
            return validate_offsets(record, message.append_ns, self._window_ns)[0]

        record = self._decoded(message, CLOCK_OFFSETS, validate)
        shard = None if record is None else self._shard(record["shard"])
        if record is not None and shard is not None:
            out += shard.evaluate(message.log_ns - 1)
            shard.log_offset_ns = self._log_offset_ns = self.offset_of(record["log_offset_ns"])
            out += shard.ingest_clocks(record, message.log_ns)

    def _process_event(self, message: Message, out: Published) -> None:
        event = self._decoded(message, LINKS, validate_link_event)
        shard = None if event is None else self._shard(event["shard"])
        if event is not None and shard is not None:
            out += shard.ingest_event(event, message.log_ns)

    def _shard(self, name: str) -> ShardAlerts | None:
        """Return the alerts of a shard; None if another worker owns the shard."""
        alerts = self.shards.get(name)
        if alerts is None and self._owned(name):
            alerts = self.shards[name] = ShardAlerts(
                name,
                self.config.thresholds(),
                self.wiring.cables_at,
                lambda nic: groups_of(self._members.member(nic)),
                self.inventory.probe_slots.get,
            )
            alerts.log_offset_ns = self._log_offset_ns
            alerts.recover(self._past, self._starts_ns.get(LINKS.name, 0))
            if self._rules_in_force:
                alerts.set_latency_rules(self._latency_config.latency_rules())
        return alerts

    def _update(self, table: LiveConfig | Inventory, message: Message) -> bool:
        """Apply a message to a table; return whether the message was valid."""
        try:
            table.take_message(message, self._registry, message.log_ns)
        except codec.BadRecord:
            return False
        return True

    def _decoded(
        self, message: Message, topic: Topic[R], validate: Callable[[R], R] | None = None
    ) -> R | None:
        """Return a message's validated record; None for a tombstone or an invalid message."""
        if message.record is None and message.value is None:
            return None
        try:
            record = message.decoded(topic, self._registry)
            return record if validate is None else validate(record)
        except codec.BadRecord as error:
            if message.topic not in REJECTED_ELSEWHERE:
                self.rejected.append((message, error))
            return None
