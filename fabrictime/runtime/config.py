"""Loads one TOML file with every setting; each package checks its own table.

`Config` has one frozen model per package. Values that packages share (addresses, directories, secrets) come
from one place. A wrong value is reported in one line with the file, the key and the accepted values.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fabrictime.runtime.shared_values import SHARED
from fabrictime.runtime.user import expand_paths
from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings
from schemas.settings_file import BadFile, read_tables

if TYPE_CHECKING:
    from actuators.notify.settings import NotifySettings
    from actuators.settings import ActuatorSettings
    from fabrictime.history.settings import HistorySettings
    from fabrictime.log.settings import LogSettings
    from fabrictime.metrics.settings import MetricsSettings
    from fabrictime.runtime.settings import UpSettings
    from fabrictime.testbed.settings import FabricSettings
    from fabrictime.web.settings import WebSettings
    from producers.audit.settings import AuditSettings
    from producers.collectives.settings import CollectiveSettings
    from producers.probe.rdma.settings import RdmaProbeSettings
    from producers.settings import FlowSettings, ProbeSettings
    from producers.sim.settings import SimSettings
    from schemas.signing import ControlSettings
    from streams.runtime.settings import StreamSettings

Tables = dict[str, dict[str, Any]]
_Model = TypeVar("_Model", bound=BaseModel)

ENVIRONMENT_PREFIX: Final = "FABRICTIME_KAFKA_"
"""Prefix of the environment variables that set keys of [kafka], such as FABRICTIME_KAFKA_SASL_USERNAME."""
MAX_QUOTED: Final = 200
SECRET_TABLES: Final = frozenset({"notify"})
"""Tables with URLs that may contain secrets: messages do not show their values."""
HIDDEN: Final = "(not shown)"
DEFAULT_FILE: Final = Path("fabrictime.toml")
"""File that is read if no --config is given and it exists."""

TABLES: Final[dict[str, str]] = {
    "up": "fabrictime.runtime.settings:UpSettings",
    "kafka": "schemas.kafka.settings:KafkaSettings",
    "control": "schemas.signing:ControlSettings",
    "log": "fabrictime.log.settings:LogSettings",
    "history": "fabrictime.history.settings:HistorySettings",
    "metrics": "fabrictime.metrics.settings:MetricsSettings",
    "probes": "producers.settings:ProbeSettings",
    "rdma_probes": "producers.probe.rdma.settings:RdmaProbeSettings",
    "flows": "producers.settings:FlowSettings",
    "collectives": "producers.collectives.settings:CollectiveSettings",
    "audit": "producers.audit.settings:AuditSettings",
    "streams": "streams.runtime.settings:StreamSettings",
    "actuators": "actuators.settings:ActuatorSettings",
    "notify": "actuators.notify.settings:NotifySettings",
    "web": "fabrictime.web.settings:WebSettings",
    "fabric": "fabrictime.testbed.settings:FabricSettings",
    "sim": "producers.sim.settings:SimSettings",
}
"""Table of the file to `module:class` of the model that checks it."""


class ConfigError(InputError):
    """The settings cannot be used; the message has one line for each wrong key.

    `follows`: all wrong keys got their value from another table, so that table has the fault too.
    """

    def __init__(self, text: str, *, follows: bool = False) -> None:
        super().__init__(text)
        self.follows = follows


def model_of(table: str) -> type[BaseModel]:
    """Return the model class that checks a table of the settings file."""
    module, _, name = TABLES[table].partition(":")
    return cast(type[BaseModel], getattr(import_module(module), name))


class _Table(Generic[_Model]):
    """A descriptor of `Config` that checks its table at the first access."""

    def __set_name__(self, owner: type[Config], name: str) -> None:
        self._name = name

    def __get__(self, config: Config, owner: type[Config]) -> _Model:
        model = config.checked(self._name)
        config.__dict__[self._name] = model
        return cast(_Model, model)


@dataclass(frozen=True)
class Config:
    """The settings. A table is checked at its first access, so that a service loads only its own tables."""

    tables: Tables
    source: str
    command_line: frozenset[str] = frozenset()
    """Keys of [up] that the command line sets: what a command names outweighs what runs elsewhere."""

    up: ClassVar[_Table[UpSettings]] = _Table()
    """Settings of `fabrictime up`."""
    kafka: ClassVar[_Table[KafkaSettings]] = _Table()
    """The Kafka cluster and the schema registry."""
    control: ClassVar[_Table[ControlSettings]] = _Table()
    """How records that make actuators act are signed and checked."""
    log: ClassVar[_Table[LogSettings]] = _Table()
    """The embedded log."""
    history: ClassVar[_Table[HistorySettings]] = _Table()
    """The embedded history."""
    metrics: ClassVar[_Table[MetricsSettings]] = _Table()
    """The metrics of all processes."""
    probes: ClassVar[_Table[ProbeSettings]] = _Table()
    """The probers, fleet-wide."""
    rdma_probes: ClassVar[_Table[RdmaProbeSettings]] = _Table()
    """The RDMA probers, fleet-wide."""
    flows: ClassVar[_Table[FlowSettings]] = _Table()
    """The flow reporters, fleet-wide."""
    collectives: ClassVar[_Table[CollectiveSettings]] = _Table()
    """The reporters of jobs' operations, fleet-wide."""
    audit: ClassVar[_Table[AuditSettings]] = _Table()
    """The auditors, fleet-wide."""
    streams: ClassVar[_Table[StreamSettings]] = _Table()
    """The Faust workers."""
    actuators: ClassVar[_Table[ActuatorSettings]] = _Table()
    """The actuator of a host."""
    notify: ClassVar[_Table[NotifySettings]] = _Table()
    """The notifier, which sends alerts to people."""
    web: ClassVar[_Table[WebSettings]] = _Table()
    """The live page."""
    fabric: ClassVar[_Table[FabricSettings]] = _Table()
    """The fabric of real packets."""
    sim: ClassVar[_Table[SimSettings]] = _Table()
    """The simulated fleet."""

    @cached_property
    def bootstrap(self) -> str:
        """Address of the Kafka cluster, host:port: `up.log_url`, else the embedded log's."""
        if self.up.log_url is not None:
            return self.up.log_url.removeprefix("kafka://")
        return f"{in_url(self.value('log', 'host'))}:{self.value('log', 'port')}"

    @cached_property
    def history_url(self) -> str:
        """Address of ClickHouse's HTTP protocol: `up.history_url`, else the embedded history's."""
        if self.up.history_url is not None:
            return self.up.history_url.rstrip("/")
        return f"http://{in_url(self.value('history', 'host'))}:{self.value('history', 'port')}"

    def check(self) -> None:
        """Check every table. Raises ConfigError with one line per wrong key."""
        errors: list[ConfigError] = []
        for table in TABLES:
            try:
                getattr(self, table)
            except ConfigError as error:
                errors.append(error)
        if not errors:
            errors = self._check_topology() + self._check_kafka()
        causes = [error for error in errors if not error.follows] or errors
        if causes:
            raise ConfigError("\n".join(dict.fromkeys("\n".join(map(str, causes)).splitlines())))

    def _check_topology(self) -> list[ConfigError]:
        from schemas.topology import TopologyError, load_topology

        errors = []
        for path in {self.probes.topology_file, self.streams.topology_file} - {None}:
            try:
                load_topology(cast(Path, path))
            except TopologyError as error:
                errors.append(ConfigError(str(error)))
        return errors

    def _check_kafka(self) -> list[ConfigError]:
        kafka = self.kafka
        if self.up.log_url is None and kafka.security_protocol != "PLAINTEXT":
            text = "expects up.log_url as well: the embedded log serves this machine only, in plain text"
            return [ConfigError(f"{self.source}: [kafka]: {kafka.security_protocol} {text}")]
        try:
            kafka.aiokafka_options()
            kafka.registry()
        except (ValueError, ImportError) as error:
            return [ConfigError(f"{self.source}: [kafka]: {error}")]
        return []

    def replaced(self, changes: Mapping[str, Mapping[str, Any]]) -> Config:
        """Return a config with changed keys, given by table. Tables are checked again at the next access."""
        tables = {name: {**self.tables.get(name, {}), **changes.get(name, {})} for name in TABLES}
        return Config(tables, self.source, self.command_line)

    def dump(self) -> str:
        """Return all tables with their derived values, as JSON that `load` accepts instead of a TOML file."""
        return json.dumps({name: getattr(self, name).model_dump(mode="json") for name in TABLES}, indent=1)

    def value(self, table: str, key: str) -> Any:
        """Return a key's value in the file, else its model's default, without checking it."""
        return self.tables.get(table, {}).get(key, model_of(table).model_fields[key].default)

    def history_secret(self, kind: str) -> Path | None:
        """Return the file with the password for history; None if none is set. `kind` is read or write."""
        if self.up.history_url is not None:
            return self.up.history_password_file
        token_file = self.tables.get("history", {}).get(f"{kind}_token_file")
        return (
            Path(str(token_file))
            if token_file
            else self.up.data_directory / "secrets" / f"history-{kind}.token"
        )

    def checked(self, name: str) -> BaseModel:
        """Return the checked model of a table, with shared values for missing keys. Raises ConfigError."""
        model = model_of(name)
        table_values = self.filled(name, self.tables.get(name, {}))
        for path in dict.fromkeys(full.rpartition(".")[0] for full in SHARED):
            table, dot, below = path.partition(".")
            if table == name and dot and isinstance(table_values.get(below, {}), dict):
                table_values[below] = self.filled(path, table_values.get(below, {}))
        try:
            return model.model_validate(table_values)
        except ValidationError as error:
            own = [e["loc"] for e in error.errors() if _holds(self.tables.get(name, {}), e["loc"])]
            lines = _lines(self.source, name, model, error, own)
            raise ConfigError("\n".join(lines), follows=not own) from None

    def filled(self, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table's values, with shared values for missing keys. `path`: the table's full name."""
        with_shared = dict(values)
        for full, source in SHARED.items():
            table, _, key = full.rpartition(".")
            if table != path:
                continue
            if values.get(key) is None:
                with_shared[key] = source.value(self)
            elif key == "kafka" and isinstance(values[key], dict):  # keys that differ for this package
                with_shared[key] = {**source.value(self), **values[key]}
        return with_shared


def load(path: Path | None, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
    """Read the file and return the config. `path` None: `./fabrictime.toml`, if it exists.

    `changes`: keys that the command line sets, by table. Raises ConfigError.
    """
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    tables = _with_environment({} if path is None else _read(path))
    source = "settings" if path is None else str(path)
    wrong = list(_unknown_tables(source, tables))
    if wrong:
        raise ConfigError("\n".join(wrong))
    config = Config(tables, source, frozenset((changes or {}).get("up", {}))).replaced(changes or {})
    tables = {name: _with_home(source, name, table) for name, table in config.tables.items()}
    return Config(tables, source, config.command_line)


def _with_home(source: str, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with `~` expanded in its paths. Its model is loaded only if the table contains a `~`."""
    if not _any_text(table, "~"):
        return table
    try:
        return expand_paths(model_of(name), table)
    except ValueError as error:
        raise ConfigError(f"{source}: {name}.{error}") from None


def _any_text(value: object, start: str) -> bool:
    if isinstance(value, dict):
        return any(_any_text(below, start) for below in value.values())
    return isinstance(value, str) and value.startswith(start)


def in_url(host: Any) -> str:
    """Return a host as URLs need it before a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in str(host) else str(host)


def _with_environment(tables: Tables) -> Tables:
    """Return the tables with the keys that environment variables set: those of [kafka], and up.log_url."""
    variables = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    for key in variables.keys() - KafkaSettings.model_fields.keys():
        hint = _meant(key, KafkaSettings.model_fields)
        raise ConfigError(f"{ENVIRONMENT_PREFIX}{key.upper()}: unknown key of [kafka], {hint}")
    if not variables or not all(isinstance(tables.get(name, {}), dict) for name in ("up", "kafka")):
        return tables
    up = {"log_url": variables.pop("bootstrap")} if "bootstrap" in variables else {}
    return {**tables, "up": {**tables.get("up", {}), **up}, "kafka": {**tables.get("kafka", {}), **variables}}


def _read(path: Path) -> Tables:
    try:
        return read_tables(path)
    except BadFile as error:
        raise ConfigError(f"{path}: {error}") from None


def _unknown_tables(source: str, tables: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tables.items():
        if name not in TABLES:
            yield f"{source}: [{plain(name)}]: unknown table, {_meant(name, TABLES)}"
        elif not isinstance(value, dict):
            yield f"{source}: {name} = {short(value)}: expected a table, [{name}]"


def short(value: object) -> str:
    """Return a value as text for error messages: one line, at most 200 characters, without passwords."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        text = "a number of more than 4,300 digits"
    text = re.sub(r"//[^/@\s]*@", "//…@", text)  # a password in a URL
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def plain(key: str) -> str:
    """Return a key as text for error messages: quoted if it has unreadable characters."""
    return key if key.isprintable() and 0 < len(key) <= MAX_QUOTED else short(key)


def _meant(token: str, names: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(token, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"expected one of {', '.join(sorted(names))}"


def _holds(table: Mapping[str, Any], path: Sequence[Any]) -> bool:
    """Return whether the value at `path` comes from the file: `path` is empty or begins in `table`."""
    return not path or path[0] in table


def _lines(
    source: str, table: str, model: type[BaseModel], error: ValidationError, own: Sequence[Any]
) -> Iterator[str]:
    """Yield a line for each wrong key. If wrong keys are in `own`, the file's keys, skip all others."""
    schema = model.model_json_schema()
    for error_details in error.errors(include_url=False):
        if own and error_details["loc"] not in own:
            continue
        where = [
            str(part) for part in error_details["loc"] if not str(part).startswith(("function-", "literal["))
        ]
        key = ".".join([table, *map(plain, where)])
        field = field_schema(schema, where)
        if error_details["type"] == "extra_forbidden":
            fields = field_schema(schema, where[:-1]).get("properties", {})
            yield f"{source}: {key}: unknown key, {_meant(where[-1], fields)}"
        elif error_details["type"] == "missing":
            yield f"{source}: {key}: missing, expected {takes(field)}"
        elif not field or not where:
            yield f"{source}: [{table}]: {_message(error_details)}"
        else:
            custom = error_details["type"] in ("value_error", "assertion_error")
            expected = _message(error_details) if custom else f"expected {takes(field)}"
            meaning = f" ({field['description']})" if field.get("description") else ""
            input_text = HIDDEN if table in SECRET_TABLES else short(error_details["input"])
            yield f"{source}: {key} = {input_text}: {expected}{meaning}"


def _message(error_details: ErrorDetails) -> str:
    return str(error_details["msg"]).removeprefix("Value error, ")


def field_schema(schema: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the JSON schema at `path` in a model's schema, with references resolved; {} if there is none."""
    here = _resolved(schema, schema)
    for part in path:
        if part in here.get("properties", {}):
            below = here["properties"][part]
        elif part.isdigit() and "items" in here:
            below = here["items"]
        elif isinstance(here.get("additionalProperties"), dict):
            below = here["additionalProperties"]
        else:
            return here if here.get("anyOf") or "type" in here else {}
        here = _resolved(below, schema)
    return here


def _resolved(below: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    resolved = dict(below)
    while "$ref" in resolved:
        name = str(resolved.pop("$ref")).rpartition("/")[2]
        resolved = {**schema["$defs"][name], **resolved}
    if "anyOf" in resolved:
        resolved["anyOf"] = [_resolved(branch, schema) for branch in resolved["anyOf"]]
    for part in ("items", "additionalProperties"):
        if isinstance(resolved.get(part), dict):
            resolved[part] = _resolved(resolved[part], schema)
    return resolved


def takes(field: Mapping[str, Any]) -> str:
    """Return a text about the values that a JSON schema allows, such as 'a whole number from 0 to 65535'."""
    if "enum" in field or "const" in field:
        symbols = field.get("enum", [field.get("const")])
        return " or ".join(json.dumps(symbol) for symbol in symbols)
    if "anyOf" in field:
        kinds = [takes(branch) for branch in field["anyOf"] if branch.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    match field.get("type"):
        case "integer":
            return f"a whole number{_range(field)}"
        case "number":
            return f"a number{_range(field)}"
        case "boolean":
            return "true or false"
        case "array":
            items = field.get("items", {})
            return f"a list, each element {takes(items)}" if items else "a list"
        case "object":
            values = field.get("additionalProperties")
            return f"a table, each value {takes(values)}" if isinstance(values, dict) else "a table"
    return _text_form(field)


def _text_form(field: Mapping[str, Any]) -> str:
    if field.get("format") == "path":
        return "a path"
    if "examples" in field:
        return f"text such as {field['examples'][0]}"
    return f"text like {field['pattern']}" if "pattern" in field else "text"


def _range(field: Mapping[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    above, below = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    limits = []
    if low is not None and high is not None:
        return f" from {low:.12g} to {high:.12g}"
    limits += [f"at least {low:.12g}"] if low is not None else []
    limits += [f"above {above:.12g}"] if above is not None else []
    limits += [f"at most {high:.12g}"] if high is not None else []
    limits += [f"below {below:.12g}"] if below is not None else []
    return f" {' and '.join(limits)}" if limits else ""
