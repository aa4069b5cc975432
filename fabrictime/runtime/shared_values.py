"""Defines values that several tables of the settings share; each is set once and completes other tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config

SIM_TIMEOUT_MAX_MS: Final = 300
"""Largest timeout of the simulated fleet, ms; that of real probes may be longer."""


class Source(NamedTuple):
    """The source of a value that its table does not set.

    `text` describes it in the example file; `value` returns the value.
    """

    text: str
    value: Callable[[Config], Any]


def _key(path: str) -> Source:
    """Return the Source of a key that has the value of another table's key."""
    table, key = path.split(".")
    return Source(path, lambda config: config.value(table, key))


def _file(path: str, text: str = "") -> Source:
    """Return the Source of a file or folder in the data directory of `fabrictime up`."""
    return Source(text or f"{path} in up.data_directory", lambda config: config.up.data_directory / path)


def _sim_timeout_ms(config: Config) -> Any:
    """Return the probers' timeout, but at most `SIM_TIMEOUT_MAX_MS`. The model refuses non-numbers."""
    timeout_ms = config.value("probes", "timeout_ms")
    return min(SIM_TIMEOUT_MAX_MS, timeout_ms) if isinstance(timeout_ms, int | float) else timeout_ms


_KAFKA: Final = Source("[kafka]", lambda config: config.filled("kafka", config.tables.get("kafka", {})))
_CONTROL: Final = Source("[control]", lambda config: config.tables.get("control", {}))
_PROBE_KEY: Final = Source("probes.key_file", lambda config: config.probes.key_file)
_HISTORY_URL: Final = Source("up.history_url, else the embedded history", lambda config: config.history_url)
_UP_MAKES: Final = "made in up.data_directory"


def _history_user(embedded: str) -> Source:
    """Return the Source of a ClickHouse user name: the external history's user, else `embedded`."""
    return Source(
        "up.history_user where up.history_url is set",
        lambda config: embedded if config.up.history_url is None else config.up.history_user,
    )


def _history_password(kind: str) -> Source:
    return Source(
        "up.history_password_file where up.history_url is set", lambda config: config.history_secret(kind)
    )


_PROBES_TOO: Final = {
    "rdma_probes": "verbs_python peers_seed max_age_s flush_ms announce_s silent_s",
    "flows": "trace trace_max_hops link_prefix topology_file",
    "streams": "topology_file",
    "sim": "peers peers_seed paths first_path_port spacing_ns flush_ms announce_s",
}
"""Keys that get the value of the same key of [probes] if their table does not set them."""
_WITH_KAFKA: Final = (
    "probes",
    "rdma_probes",
    "flows",
    "collectives",
    "audit",
    "streams",
    "actuators",
    "notify",
    "web",
    "sim",
)

SHARED: Final[dict[str, Source]] = {
    **{f"{table}.kafka": _KAFKA for table in _WITH_KAFKA},
    **{
        f"{table}.{key}": _key(f"probes.{key}") for table, keys in _PROBES_TOO.items() for key in keys.split()
    },
    **{f"{table}.control": _CONTROL for table in ("actuators", "streams", "web")},
    "kafka.bootstrap": Source("up.log_url, else the embedded log", lambda config: config.bootstrap),
    "log.directory": _file("log/"),
    "log.retention_hours": Source(
        "probes.retention_hours",
        lambda config: {"probes.retention_hours": config.value("probes", "retention_hours")},
    ),
    "history.directory": _file("history/"),
    "history.write_token_file": _file("secrets/history-write.token", _UP_MAKES),
    "history.read_token_file": _file("secrets/history-read.token", _UP_MAKES),
    "probes.key_file": _file("secrets/probe.key", _UP_MAKES),
    "probes.window_ms": _key("streams.window_ms"),
    "probes.path_status_socket": _file("run/path-status.sock"),
    "rdma_probes.key_file": _PROBE_KEY,
    "flows.socket": _file("run/flows.sock"),
    "collectives.socket": _file("run/collectives.sock"),
    "audit.traffic.key_file": _PROBE_KEY,
    "streams.history.url": _HISTORY_URL,
    "streams.history.user": _history_user("fabrictime"),
    "streams.history.password_file": _history_password("write"),
    "sim.timeout_ms": Source(f"probes.timeout_ms, at most {SIM_TIMEOUT_MAX_MS}", _sim_timeout_ms),
    "actuators.window_ms": _key("streams.window_ms"),
    "actuators.host": Source("up.host_name", lambda config: config.up.host_name),
    "actuators.control_socket": _file("run/control.sock"),
    "actuators.path_status_socket": _file("run/path-status.sock"),
    "actuators.journal_file": _file("run/journal.jsonl"),
    "web.history_url": _HISTORY_URL,
    "web.history_user": _history_user("reader"),
    "web.history_token_file": _history_password("read"),
    "web.state_file": _file("run/state.json"),
    "web.links_group": Source(
        "streams.group and '-links'", lambda config: f"{config.value('streams', 'group')}-links"
    ),
    "web.window_ms": _key("streams.window_ms"),
    "web.runbook_url": _key("notify.runbook_url"),
    "web.commit_interval_ms": _key("streams.commit_interval_ms"),
    "fabric.clock_offset_max_ns": Source("5000000, so that there is something to see", lambda _: 5_000_000),
    "fabric.clock_drift_max_ppb": Source("15000", lambda _: 15_000.0),
    "fabric.clock_wander_ppb_per_sqrt_s": Source("1", lambda _: 1.0),
}
"""`table.key` to the source of its value if the table does not set it."""
