"""Reads, changes and compares the live configuration, the records of `fabric.config`.

Names and values come from the command line. The table of thresholds, the limits and the schema check a new
`ActuatorConfig` before it is published. The configuration in force is printed as a table or JSON.
"""

from __future__ import annotations

import copy
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fabrictime.commands.screen import table_of, terminal
from fabrictime.runtime.user import user_name
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.limits import MAX_VERSION, Limits
from schemas.records import ActMode, ActuatorConfig, FlowAction, LatencyRule, TenantSlice
from schemas.signing import NO_CONTROL, ControlSettings
from schemas.topics import CONFIG
from streams.runtime.live_config import EVERYONE
from streams.runtime.thresholds import THRESHOLDS, Thresholds, check_value

MODES: Final = (ActMode.OBSERVE, ActMode.ACT, ActMode.UNKNOWN)
ACTIONS: Final = tuple(action for action in FlowAction if action != FlowAction.UNKNOWN)
FLOW_ACTIONS: Final = frozenset(ACTIONS) - {FlowAction.DRAIN, FlowAction.RESUME}
SANE_ACTIONS_PER_S: Final = 1000
SANE_MOVED_SHARE: Final = 0.9
"""A share above this value is not really a limit, so `config set` requires a confirmation."""
REVERT_AHEAD_NS: Final = 1_000_000_000
"""An order to revert covers actions up to this long after now, ns. So clocks that differ leave no action out;
no action is applied in that time.
"""
PLAIN: Final[ActuatorConfig] = {
    "host": EVERYONE,
    "version": 0,
    "at_ns": 0,
    "by": "",
    "mode": ActMode.UNKNOWN,
    "thresholds": [],
    "latency_rules": [],
    "allowed_actions": [],
    "max_actions_per_s": None,
    "max_moved_share": None,
    "protected_jobs": [],
    "slices": [],
    "revert_before_ns": None,
    "paused_mode": "",
    "drains_reset_ns": None,
    "signature": None,
}
"""The record that stands for a key without a record."""
HEAD: Final = frozenset({"host", "version", "at_ns", "by", "signature"})
"""Fields of a record that are not settings."""
LIMITS: Final = (
    "mode",
    "allowed_actions",
    "max_actions_per_s",
    "max_moved_share",
    "protected_jobs",
    "slices",
)


@dataclass(frozen=True, slots=True)
class Line:
    """One threshold in force. `set_by`: the host or `*` whose record sets it, None for the default."""

    name: str
    value: float
    default: float
    minimum: float
    maximum: float
    set_by: str | None
    doc: str


def lines(records: Mapping[str, ActuatorConfig], host: str = EVERYONE) -> list[Line]:
    """Return the thresholds in force at a host, in the order of their names."""
    keys = [key for key in dict.fromkeys((EVERYONE, host)) if key in records]
    values, _ = Thresholds.of(records[key] for key in keys)
    source: dict[str, str] = {}
    for key in keys:
        source |= {threshold["name"]: key for threshold in records[key]["thresholds"]}
    return [
        Line(name, values[name], t.default, t.min_value, t.max_value, source.get(name), t.doc)
        for name, t in sorted(THRESHOLDS.items())
    ]


def changed(
    record: ActuatorConfig | None, host: str, settings: Sequence[str], unset: Sequence[str] = ()
) -> ActuatorConfig:
    """Return the successor of `record` with the `NAME=VALUE` settings, and without the names in `unset`.

    Raises ValueError for an invalid name or value, or if nothing would change.
    """
    new = successor(record, host)
    values = {threshold["name"]: threshold["value"] for threshold in new["thresholds"]}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"{setting!r}: expected NAME=VALUE")
        if name in LIMITS or name.startswith("slice."):
            _set_limit(new, name, text)
            continue
        try:
            number = float(text)
        except ValueError:
            raise InputError(f"threshold {name}: {text!r}, expected a number") from None
        values[name] = check_value(name, number)
    for name in unset:
        if name in LIMITS or name.startswith("slice."):
            _unset_limit(new, name)
            continue
        if name not in values:
            raise InputError(f"threshold {name}: not set for {host}, nothing to remove")
        del values[name]
    new["thresholds"] = [{"name": name, "value": values[name]} for name in sorted(values)]
    return _checked(new, record)


def _set_limit(new: ActuatorConfig, name: str, text: str) -> None:
    match name:
        case "mode":
            new["mode"], new["paused_mode"] = _mode(text), ""
        case "allowed_actions":
            new["allowed_actions"] = _actions(text)
        case "max_actions_per_s":
            if not text.isdecimal() or int(text) > 2**31 - 1:
                raise InputError(f"{name} {text!r}: expected a whole number from 0")
            new["max_actions_per_s"] = int(text)
        case "max_moved_share":
            new["max_moved_share"] = _moved_share(new, text)
        case "protected_jobs":
            new["protected_jobs"] = _items(text)
        case "slices":
            raise InputError("slices: expected slice.TENANT=GUARANTEE:CEILING, bit/s")
        case _:
            one = _slice(name, text)
            others = [
                tenant_slice for tenant_slice in new["slices"] if tenant_slice["tenant"] != one["tenant"]
            ]
            new["slices"] = sorted([*others, one], key=lambda tenant_slice: tenant_slice["tenant"])


def _mode(text: str) -> ActMode:
    if text not in MODES:
        raise InputError(f"mode {text!r}: expected one of {', '.join(MODES)}")
    return ActMode(text)


def _actions(text: str) -> list[str]:
    actions = _items(text)
    for action in actions:
        if action not in ACTIONS:
            raise InputError(f"allowed_actions {action!r}: expected some of {', '.join(ACTIONS)}")
    return actions


def _moved_share(new: ActuatorConfig, text: str) -> float:
    if new["host"] != EVERYONE:
        raise InputError(f"max_moved_share: is set for {EVERYONE} alone")
    share = _number("max_moved_share", text)
    if not 0 <= share <= 1:
        raise InputError(f"max_moved_share {text}: expected a number from 0 to 1")
    return share


def _slice(name: str, text: str) -> TenantSlice:
    tenant = name.removeprefix("slice.")
    low, _, high = text.partition(":")
    guarantee, ceiling = _rate(name, low), _rate(name, high) if high else None
    if not tenant or (ceiling is not None and ceiling < guarantee):
        raise InputError(f"{name} {text!r}: expected slice.TENANT=GUARANTEE:CEILING, the ceiling above")
    return {"tenant": tenant, "guarantee_bps": guarantee, "ceiling_bps": ceiling}


def _unset_limit(new: ActuatorConfig, name: str) -> None:
    match name:
        case "mode":
            new["mode"] = PLAIN["mode"]
        case "allowed_actions":
            new["allowed_actions"] = []
        case "max_actions_per_s":
            new["max_actions_per_s"] = None
        case "max_moved_share":
            new["max_moved_share"] = None
        case "protected_jobs":
            new["protected_jobs"] = []
        case "slices":
            new["slices"] = []
        case _:
            tenant = name.removeprefix("slice.")
            if tenant not in [tenant_slice["tenant"] for tenant_slice in new["slices"]]:
                raise InputError(f"{name}: not set for {new['host']}, nothing to remove")
            new["slices"] = [
                tenant_slice for tenant_slice in new["slices"] if tenant_slice["tenant"] != tenant
            ]


def _items(text: str) -> list[str]:
    return sorted({token for token in text.split(",") if token})


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} {text!r}: expected a number") from None


def _rate(name: str, text: str) -> int:
    """Return a rate such as `20M`, `1.5G` or a plain number, in bit/s. Raises ValueError."""
    times = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    bare, unit = (text[:-1], times[text[-1]]) if text[-1:] in times else (text, 1.0)
    rate = _number(name, bare) * unit
    if not 0 <= rate <= 1e15:
        raise InputError(f"{name} {text!r}: expected a rate such as 20M or 100G, bit/s")
    return round(rate)


def too_wide(record: ActuatorConfig, before: ActuatorConfig | None = None) -> list[str]:
    """Return a line for each limit of `before` that `record` removes or makes ineffective."""
    before = before or PLAIN

    def wide(value: float | None, old: float | None, maximum: float) -> bool:
        return value is not None and value > maximum and (old is None or old <= maximum)

    removals = []
    if wide(record["max_actions_per_s"], before["max_actions_per_s"], SANE_ACTIONS_PER_S):
        removals.append(
            f"max_actions_per_s {record['max_actions_per_s']}: above {SANE_ACTIONS_PER_S} is no limit"
        )
    if wide(record["max_moved_share"], before["max_moved_share"], SANE_MOVED_SHARE):
        removals.append(
            f"max_moved_share {record['max_moved_share']:g}: above {SANE_MOVED_SHARE:g} is no limit"
        )
    every = set(record["allowed_actions"]) >= FLOW_ACTIONS and record["mode"] == ActMode.ACT
    if every and not (set(before["allowed_actions"]) >= FLOW_ACTIONS) and record["max_actions_per_s"] is None:
        removals.append("allowed_actions: all of flows, in mode ACT and without max_actions_per_s")
    return removals


def differences(record: ActuatorConfig | None, other: ActuatorConfig | None) -> list[tuple[str, Any, Any]]:
    """Return (name, value in `record`, value in `other`) for each threshold, rule and limit that differs."""
    one, two = _flat(record or PLAIN), _flat(other or PLAIN)
    return [
        (name, one.get(name), two.get(name))
        for name in sorted(one.keys() | two.keys())
        if one.get(name) != two.get(name)
    ]


def _flat(record: ActuatorConfig) -> dict[str, object]:
    plain = _settings(PLAIN)
    flat = {
        name: value
        for name, value in record.items()
        if name in LIMITS and name != "slices" and value != plain[name]
    }
    flat |= {threshold["name"]: threshold["value"] for threshold in record["thresholds"]}
    flat |= {f"rule {rule['name']}": rule for rule in record["latency_rules"]}
    for tenant_slice in record["slices"]:
        flat[f"slice.{tenant_slice['tenant']}"] = {
            "guarantee_bps": tenant_slice["guarantee_bps"],
            "ceiling_bps": tenant_slice["ceiling_bps"],
        }
    return flat


def _settings(record: ActuatorConfig) -> dict[str, object]:
    return {name: value for name, value in record.items() if name not in HEAD}


def from_file(record: ActuatorConfig | None, host: str, values: Mapping[str, object]) -> ActuatorConfig:
    """Return the successor of `record` whose settings are exactly the values of a file.

    `values` maps NAME to value, as in `config set`, but with lists in place of commas. Raises ValueError.
    """
    old = record or PLAIN
    empty: ActuatorConfig = {**PLAIN, "version": old["version"]}
    settings = [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in values.items()
    ]
    new = successor(empty, host)
    if settings:
        new = changed(empty, host, settings)
    new["latency_rules"] = list(old["latency_rules"])
    new["paused_mode"] = old["paused_mode"]
    return new


def paused(records: Mapping[str, ActuatorConfig], *, revert: bool, now_ns: int) -> list[ActuatorConfig]:
    """Return new records that stop all actions: for `*`, and for each host whose own mode is ACT."""
    new_records = []
    for host in sorted(
        {EVERYONE, *(key for key, record in records.items() if record["mode"] == ActMode.ACT)}
    ):
        old = records.get(host)
        new = successor(old, host)
        new["paused_mode"] = new["mode"] if new["mode"] != ActMode.OBSERVE else new["paused_mode"]
        new["mode"] = ActMode.OBSERVE
        if revert and host == EVERYONE:
            new["revert_before_ns"] = now_ns + REVERT_AHEAD_NS
        new_records.append(new)
    return new_records


def resumed(records: Mapping[str, ActuatorConfig]) -> list[ActuatorConfig]:
    """Return new records that restore the modes before the pause. Raises ValueError without a pause."""
    new_records = []
    for host in sorted(key for key, record in records.items() if record["paused_mode"]):
        new = successor(records[host], host)
        new["mode"], new["paused_mode"] = ActMode(new["paused_mode"]), ""
        new_records.append(new)
    if not new_records:
        raise InputError("nothing is paused: `fabrictime config set mode=ACT` begins to act")
    return new_records


def begin_acting(
    cluster: KafkaSettings | str,
    registry: codec.Registry | None = None,
    control: ControlSettings = NO_CONTROL,
    *,
    on_own_fabric: bool,
) -> None:
    """Set mode ACT for all hosts, unless `fabric.config` already sets a mode for all hosts.

    Raises ValueError. `on_own_fabric`: also let all flows move, unless `max_moved_share` is set.
    """
    live = LiveRecords(cluster, registry, control)
    old = live.records.get(EVERYONE)
    if old is not None and old["mode"] != ActMode.UNKNOWN:
        return
    new = successor(old, EVERYONE)
    new["mode"] = ActMode.ACT
    if on_own_fabric:
        new["max_moved_share"] = 1.0 if new["max_moved_share"] is None else new["max_moved_share"]
    live.publish(new)


def parse_rule(name: str, between: str, p99_us: float, for_s: float) -> LatencyRule:
    """Return a latency SLO as a record. `between` is FROM>TO, two groups. Raises ValueError."""
    source, arrow, target = between.partition(">")
    if not arrow or not source or not target:
        raise InputError(f"{between!r}: expected FROM>TO, as in 'rack:r3>rack:r7'")
    if not p99_us > 0 or for_s < 0:
        raise InputError(f"rule {name}: p99_us {p99_us:g} and {for_s:g} s, expected above 0 and 0 or more")
    return {"name": name, "from_group": source, "to_group": target, "p99_us": p99_us, "for_s": for_s}


def with_rule(
    record: ActuatorConfig | None, host: str, name: str, rule: LatencyRule | None
) -> ActuatorConfig:
    """Return the successor of `record` with this latency rule; if `rule` is None, without the rule `name`.

    Raises ValueError if there is no such rule to remove, or if nothing would change.
    """
    new = successor(record, host)
    rules = {one["name"]: one for one in new["latency_rules"]}
    if rule is None and name not in rules:
        raise InputError(f"rule {name}: not set for {host}, nothing to remove")
    if rule is None:
        del rules[name]
    else:
        rules[name] = rule
    new["latency_rules"] = [rules[rule_name] for rule_name in sorted(rules)]
    return _checked(new, record)


def successor(record: ActuatorConfig | None, host: str) -> ActuatorConfig:
    """Return a copy of a host's record with the next version, the present time and this user as author.

    Raises ValueError for an invalid host.
    """
    if not host or len(host) > 128 or any(c.isspace() for c in host):
        raise InputError(f"host {host!r}: expected a host's name or *")
    old = record or PLAIN
    return {
        **copy.deepcopy(old),
        "host": host,
        "version": old["version"] + 1 if old["version"] < MAX_VERSION else 1,
        "at_ns": max(time.time_ns(), old["at_ns"] + 1),  # actuators refuse a signed record of an earlier time
        "by": f"{user_name()}@{socket.gethostname()}",
        "signature": None,
    }


def _checked(new: ActuatorConfig, record: ActuatorConfig | None) -> ActuatorConfig:
    if _settings(new) == _settings(record or PLAIN):
        raise InputError(f"{new['host']}: nothing would change")
    try:
        codec.decode(codec.encode(CONFIG.type, new), CONFIG.type)
    except ValueError as error:
        raise InputError(str(error)) from None
    return new


class LiveRecords:
    """The newest record of each key of `fabric.config`; records without a required signature are left out."""

    def __init__(
        self,
        cluster: KafkaSettings | str,
        registry: codec.Registry | None = None,
        control: ControlSettings = NO_CONTROL,
    ) -> None:
        """Read all records. Raises ValueError if the log or topic is missing, or a key file is unusable."""
        self._cluster, self._registry = cluster, registry
        self._signer, self._verifier = control.signer(), control.verifier()
        self.records: dict[str, ActuatorConfig] = {}
        self._read()

    def _read(self) -> None:
        with TopicReader.open(self._cluster, {CONFIG: BEGINNING}) as reader:
            for message in reader.read_to_end():
                self._take(message)

    def _take(self, message: Message) -> None:
        try:
            if self._verifier is not None:
                self._verifier.check(message, self._registry)
            if message.value is None:
                self.records.pop(message.key, None)
            else:
                self.records[message.key] = message.decoded(CONFIG, self._registry)
        except codec.BadRecord:  # an unreadable record counts as missing
            return

    @property
    def registry(self) -> codec.Registry | None:
        """The schema registry with which records are decoded; None without one."""
        return self._registry

    @property
    def cluster(self) -> KafkaSettings | str:
        """The Kafka cluster of the log."""
        return self._cluster

    def publish(self, *records: ActuatorConfig) -> None:
        """Publish records and wait until the log has them. Raises ValueError if the log refuses a record."""
        if self._verifier is not None and self._signer is None:
            raise InputError("control.require_signature: a change needs control.signing_key_file as well")
        publisher = Publisher(self._cluster, self._registry)
        try:
            for record in records:
                host = record["host"]
                signed = record if self._signer is None else self._signer.signed(CONFIG, host, record)
                publisher.publish(CONFIG, host, signed)
            publisher.flush(12)
        except PublishFailed as error:
            raise InputError(f"{error}; nothing is set") from None
        self.records |= {record["host"]: record for record in records}


def _limits_json(limits: Limits) -> dict[str, Any]:
    return {
        "mode": "ACT" if limits.act else "OBSERVE",
        "allowed_actions": sorted(limits.allowed),
        "max_actions_per_s": limits.max_actions_per_s,
        "max_moved_share": limits.max_moved_share,
        "protected_jobs": sorted(limits.protected_jobs),
        "config_version": limits.version,
    }


def as_json(records: Mapping[str, ActuatorConfig], lines: Sequence[Line], host: str = EVERYONE) -> str:
    """Return thresholds and limits in force, latency rules, slices and versions as one line of JSON."""
    return json.dumps(
        {
            "thresholds": [asdict(line) for line in lines],
            "latency_rules": [
                {**rule, "set_by": key} for key in sorted(records) for rule in records[key]["latency_rules"]
            ],
            "limits": _limits_json(Limits.of(records, host)),
            "slices": [
                {**tenant_slice, "set_by": key}
                for key in sorted(records)
                for tenant_slice in records[key]["slices"]
            ],
            "records": {
                key: {
                    "version": records[key]["version"],
                    "at_ns": records[key]["at_ns"],
                    "by": records[key]["by"],
                    "mode": records[key]["mode"],
                    "paused_mode": records[key]["paused_mode"],
                }
                for key in sorted(records)
            },
        },
        allow_nan=False,
    )


def show(records: Mapping[str, ActuatorConfig], lines: Sequence[Line], host: str = EVERYONE) -> None:
    """Print thresholds, latency rules, limits, slices and their authors."""
    console = terminal(200)
    titles = ("threshold", "value", "default", "takes", "set by", "meaning")
    table = table_of(titles, (), wrapped=("meaning",), right=titles[1:4])
    for line in lines:
        figures = (f"{line.value:g}", f"{line.default:g}", f"{line.minimum:g} to {line.maximum:g}")
        style = "" if line.set_by is None else "bold"
        table.add_row(line.name, *figures, line.set_by or "-", line.doc, style=style)
    console.print(table)
    for key in sorted(records):
        for rule in records[key]["latency_rules"]:
            console.print(
                f"rule {rule['name']}: p99 from {rule['from_group']} to {rule['to_group']} at most "
                f"{rule['p99_us']:g} us, above it for at most {rule['for_s']:g} s (set by {key})",
                highlight=False,
            )
    for key in sorted(records):
        for tenant_slice in records[key]["slices"]:
            ceiling = tenant_slice["ceiling_bps"]
            maximum = "no ceiling" if ceiling is None else f"at most {ceiling / 1e6:g} Mbit/s"
            minimum = f"{tenant_slice['guarantee_bps'] / 1e6:g} Mbit/s guaranteed"
            console.print(
                f"slice.{tenant_slice['tenant']}: {minimum}, {maximum} (set by {key})",
                highlight=False,
            )
    limits = Limits.of(records, host)
    jobs = f", protected jobs {', '.join(sorted(limits.protected_jobs))}" if limits.protected_jobs else ""
    console.print(
        f"in force at {host}: mode {'ACT' if limits.act else 'OBSERVE'}, actions"
        f" {', '.join(sorted(limits.allowed))}, at most {limits.max_actions_per_s} a second of a host and"
        f" {limits.max_moved_share:g} of the flows moved in a minute{jobs}",
        highlight=False,
    )
    for key in sorted(records):
        record = records[key]
        put_aside = f" ({record['paused_mode']} held)" if record["paused_mode"] else ""
        console.print(
            f"{key}: version {record['version']} by {record['by']}, mode {record['mode']}{put_aside}",
            highlight=False,
        )
