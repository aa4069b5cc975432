"""Settings of the application: services that `fabrictime up` starts, data directory, external services."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fabrictime.runtime.user import state_directory
from producers.settings import ClockSettings
from schemas.kafka.settings import ADDRESS, ADDRESS_EXAMPLE
from schemas.strict_model import StrictModel, quantity


def default_data_directory() -> Path:
    """Return the default data directory: `$XDG_STATE_HOME/fabrictime`, or `~/.local/state/fabrictime`."""
    return state_directory()[0]


class UpSettings(StrictModel):
    """Settings of `fabrictime up`."""

    fleet: str = Field(
        "fabric",
        min_length=1,
        description="fleet to probe: fabric (real packets between namespaces), loopback, none, the path of "
        "a fleet file that lists the NICs of hosts, or sim: the simulated fleet, as in "
        "sim:1024,job=allreduce:256",
    )
    data_directory: Path = Field(
        default_factory=default_data_directory,
        description="where log, history, secrets and run files lie; made owner-only",
    )
    log_url: str | None = Field(
        None,
        pattern=rf"^(kafka://)?{ADDRESS}(,{ADDRESS})*$",
        examples=[ADDRESS_EXAMPLE],
        description="host:port or [IPv6 address]:port of a Kafka cluster to use in place of the embedded log",
    )
    history_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#\s@]+/?$",
        description="http://host:port of a ClickHouse to use in place of the embedded history",
    )
    history_user: str = Field("default", min_length=1, description="user name at history_url")
    history_password_file: Path | None = Field(
        None, description="file that holds that user's password; without it none is sent"
    )
    host_name: str | None = Field(
        None, min_length=1, description="this host's name in a fleet file; without it the system's"
    )
    workers: int | None = quantity(
        None, (0, 64), "Faust workers on this machine; without it one on two processors or fewer, else two"
    )
    services: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether to start workers, history and page: auto: unless a fleet file and log_url are "
        "given, because this is one of many agents then; on; off: the agent alone",
    )
    web: bool = Field(True, description="whether to serve the live page, where services are started")
    clock_pages: bool = Field(
        True, description="whether to keep the clock pages of the hosts that are probed from here"
    )
    act: Literal["auto", "observe", "act", "off"] = Field(
        "auto",
        description="mode where fabric.config sets none: auto: act on the fabric of this machine and on the "
        "simulated fleet; observe: only publish decisions; act; off: start no actuator. "
        "On a host of a fleet file, act gives the flow actuator a process of its own, to answer at once",
    )
    loopback_nics: int = quantity(8, (2, 64), "NICs of the fleet `loopback`, on 127.0.0.x")
    clocks: dict[str, ClockSettings] = Field(
        default_factory=dict,
        description='test clocks by NIC, in place of the NIC\'s own, as in [up.clocks."h1/eth1"]',
    )
    topic_replication: int = quantity(
        1, (1, 7), "copies of each topic that is created on the cluster at log_url"
    )
    start_timeout_s: float = quantity(90.0, (1, 3600), "s that one process may take until it is ready")
    stop_timeout_s: float = Field(
        4.0, gt=0, le=60, description="s that one process may take to stop before it is killed"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="format of the services' logs: lines of text, or a JSON object a line"
    )
    table_refresh_ms: int = quantity(500, (100, 1000), "ms between two pictures of the live table")
