"""Values that tables of the settings share: each is set once, and filled in where a table lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config

__all__ = ["SHARED", "SHARED_DOC"]

SIM_TIMEOUT_MAX_MS: Final = 300
"""Largest timeout of the simulated fleet; real probes may have a longer one."""


def _limited(limit: float, value: Any) -> Any:
    """Return the value, or the limit for a larger number; anything else is for the model to refuse."""
    return min(limit, value) if isinstance(value, int | float) else value


SHARED: Final[dict[str, dict[str, Callable[[Config], Any]]]] = {
    "kafka": {"bootstrap": lambda c: c.bootstrap},
    "log": {
        "directory": lambda c: c.up.data_directory / "log",
        "retention_hours": lambda c: {"probes.retention_hours": c.value("probes", "retention_hours")},
    },
    "history": {
        "directory": lambda c: c.up.data_directory / "history",
        "write_token_file": lambda c: c.up.data_directory / "secrets" / "history-write.token",
        "read_token_file": lambda c: c.up.data_directory / "secrets" / "history-read.token",
    },
    "probes": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "key_file": lambda c: c.up.data_directory / "secrets" / "probe.key",
        "window_ms": lambda c: c.value("streams", "window_ms"),
        "path_status_socket": lambda c: c.up.data_directory / "run" / "path-status.sock",
    },
    "rdma_probes": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "key_file": lambda c: c.probes.key_file,
        "verbs_python": lambda c: c.value("probes", "verbs_python"),
        "peers_seed": lambda c: c.value("probes", "peers_seed"),
        "max_age_s": lambda c: c.value("probes", "max_age_s"),
        "flush_ms": lambda c: c.value("probes", "flush_ms"),
        "announce_s": lambda c: c.value("probes", "announce_s"),
        "silent_s": lambda c: c.value("probes", "silent_s"),
    },
    "flows": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "socket": lambda c: c.up.data_directory / "run" / "flows.sock",
        "trace": lambda c: c.value("probes", "trace"),
        "trace_max_hops": lambda c: c.value("probes", "trace_max_hops"),
        "link_prefix": lambda c: c.value("probes", "link_prefix"),
        "topology_file": lambda c: c.value("probes", "topology_file"),
    },
    "collectives": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "socket": lambda c: c.up.data_directory / "run" / "collectives.sock",
    },
    "audit": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
    },
    "audit.traffic": {"key_file": lambda c: c.probes.key_file},
    "streams": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "topology_file": lambda c: c.value("probes", "topology_file"),
    },
    "streams.history": {
        "url": lambda c: c.history_url,
        "user": lambda c: "fabrictime" if c.up.history_url is None else c.up.history_user,
        "password_file": lambda c: c.history_secret("write"),
    },
    "actuators": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "window_ms": lambda c: c.value("streams", "window_ms"),
        "host": lambda c: c.up.host_name,
        "control_socket": lambda c: c.up.data_directory / "run" / "control.sock",
        "path_status_socket": lambda c: c.up.data_directory / "run" / "path-status.sock",
        "journal_file": lambda c: c.up.data_directory / "run" / "journal.jsonl",
    },
    "web": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "history_url": lambda c: c.history_url,
        "history_user": lambda c: "reader" if c.up.history_url is None else c.up.history_user,
        "history_token_file": lambda c: c.history_secret("read"),
        "state_file": lambda c: c.up.data_directory / "run" / "state.json",
        "links_group": lambda c: f"{c.value('streams', 'group')}-links",
        "window_ms": lambda c: c.value("streams", "window_ms"),
        "commit_interval_ms": lambda c: c.value("streams", "commit_interval_ms"),
    },
    "sim": {
        "kafka": lambda c: c.filled("kafka", c.tables.get("kafka", {})),
        "peers": lambda c: c.value("probes", "peers"),
        "peers_seed": lambda c: c.value("probes", "peers_seed"),
        "paths": lambda c: c.value("probes", "paths"),
        "first_path_port": lambda c: c.value("probes", "first_path_port"),
        "spacing_ns": lambda c: c.value("probes", "spacing_ns"),
        "timeout_ms": lambda c: _limited(SIM_TIMEOUT_MAX_MS, c.value("probes", "timeout_ms")),
        "flush_ms": lambda c: c.value("probes", "flush_ms"),
        "announce_s": lambda c: c.value("probes", "announce_s"),
    },
    "fabric": {
        "clock_offset_max_ns": lambda c: 5_000_000,
        "clock_drift_max_ppb": lambda c: 15_000.0,
        "clock_wander_ppb_per_sqrt_s": lambda c: 1.0,
    },
}
"""Values that packages share: table, key, and the source of the value if the key is not set."""

SHARED_DOC: Final[dict[str, str]] = {
    "kafka.bootstrap": "up.log_url, else the embedded log",
    "log.directory": "log/ in up.data_directory",
    "log.retention_hours": "probes.retention_hours",
    "history.directory": "history/ in up.data_directory",
    "history.write_token_file": "made in up.data_directory",
    "history.read_token_file": "made in up.data_directory",
    "probes.kafka": "[kafka]",
    "probes.key_file": "made in up.data_directory",
    "probes.window_ms": "streams.window_ms",
    "probes.path_status_socket": "run/path-status.sock in up.data_directory",
    "rdma_probes.kafka": "[kafka]",
    "rdma_probes.key_file": "probes.key_file",
    "rdma_probes.verbs_python": "probes.verbs_python",
    "rdma_probes.peers_seed": "probes.peers_seed",
    "rdma_probes.max_age_s": "probes.max_age_s",
    "rdma_probes.flush_ms": "probes.flush_ms",
    "rdma_probes.announce_s": "probes.announce_s",
    "rdma_probes.silent_s": "probes.silent_s",
    "flows.kafka": "[kafka]",
    "flows.socket": "run/flows.sock in up.data_directory",
    "flows.trace": "probes.trace",
    "flows.trace_max_hops": "probes.trace_max_hops",
    "flows.link_prefix": "probes.link_prefix",
    "flows.topology_file": "probes.topology_file",
    "collectives.kafka": "[kafka]",
    "collectives.socket": "run/collectives.sock in up.data_directory",
    "audit.kafka": "[kafka]",
    "audit.traffic.key_file": "probes.key_file",
    "streams.kafka": "[kafka]",
    "streams.topology_file": "probes.topology_file",
    "streams.history.url": "up.history_url, else the embedded history",
    "streams.history.user": "up.history_user where up.history_url is set",
    "streams.history.password_file": "up.history_password_file where up.history_url is set",
    "sim.kafka": "[kafka]",
    "sim.peers": "probes.peers",
    "sim.peers_seed": "probes.peers_seed",
    "sim.paths": "probes.paths",
    "sim.first_path_port": "probes.first_path_port",
    "sim.spacing_ns": "probes.spacing_ns",
    "sim.timeout_ms": "probes.timeout_ms, at most 300",
    "sim.flush_ms": "probes.flush_ms",
    "sim.announce_s": "probes.announce_s",
    "actuators.kafka": "[kafka]",
    "actuators.window_ms": "streams.window_ms",
    "actuators.host": "up.host_name",
    "actuators.control_socket": "run/control.sock in up.data_directory",
    "actuators.path_status_socket": "run/path-status.sock in up.data_directory",
    "actuators.journal_file": "run/journal.jsonl in up.data_directory",
    "web.kafka": "[kafka]",
    "web.history_url": "up.history_url, else the embedded history",
    "web.history_user": "up.history_user where up.history_url is set",
    "web.history_token_file": "up.history_password_file where up.history_url is set",
    "web.state_file": "run/state.json in up.data_directory",
    "web.links_group": "streams.group and '-links'",
    "web.window_ms": "streams.window_ms",
    "web.commit_interval_ms": "streams.commit_interval_ms",
    "fabric.clock_offset_max_ns": "5000000, so that there is something to see",
    "fabric.clock_drift_max_ppb": "15000",
    "fabric.clock_wander_ppb_per_sqrt_s": "1",
}
"""Descriptions of the shared values, for the example file."""
