"""Settings of the history sink: the ClickHouse server, batches and retention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from schemas.strict_model import StrictModel, quantity

Days = Annotated[int, Field(ge=1, le=3650)]


class RetentionSettings(StrictModel):
    """Number of days for which each table keeps its rows."""

    delays_days: Days = Field(
        default=2, description="days of path delays: one row a nic, peer, path and window"
    )
    delays_1s_days: Days = Field(default=14, description="days of the rollup: one row a nic, peer and window")
    clocks_days: Days = Field(default=14, description="days of clock offsets and bounds")
    pipeline_days: Days = Field(
        default=14, description="days of pipeline health: one row a source and window"
    )
    nic_windows_days: Days = Field(default=14, description="days of what each prober sent in each window")
    pair_fits_days: Days = Field(
        default=2, description="days of pair fits: one row a directed pair and window"
    )
    suspects_days: Days = Field(default=14, description="days of suspect pairs: one row a pair and window")
    nics_days: Days = Field(
        default=90, description="days that a NIC stays listed after its last announcement"
    )
    rejects_days: Days = Field(default=14, description="days of messages that could not be read")
    link_health_days: Days = Field(default=90, description="days of link states: one row a change")
    link_queues_days: Days = Field(
        default=2, description="days of queues: one row a directed link and window"
    )
    contention_days: Days = Field(default=30, description="days of contention: one row a window that stood")
    alerts_days: Days = Field(default=90, description="days of alerts: one row an alert")
    flows_days: Days = Field(default=2, description="days of flow reports: one row a flow and report")
    paths_days: Days = Field(default=30, description="days of paths: one row a path and way that it took")
    decisions_days: Days = Field(default=90, description="days of decisions: one row a decision")
    actions_days: Days = Field(
        default=90, description="days of actions: one row a decision carried out or not"
    )
    audit_days: Days = Field(default=90, description="days of audits: one row a run, host and check")
    repairs_days: Days = Field(default=400, description="days of repairs: one row a repair and state")
    diagnoses_days: Days = Field(default=90, description="days of diagnoses: one row a job and 5 s")
    rank_times_days: Days = Field(default=7, description="days of time splits: one row a rank and 5 s")
    job_flows_days: Days = Field(
        default=2, description="days of jobs' flows: one row a pair of NICs and 5 s, 256 a job at most"
    )
    collectives_days: Days = Field(
        default=2, description="days of collectives: one row a process, record and kind of operation"
    )
    job_nics_days: Days = Field(
        default=2, description="days of jobs' NICs: one row a process, record and NIC with queue pairs"
    )

    def by_table(self) -> dict[str, int]:
        """Return, by table, the number of days for which rows are kept."""
        return {name.removesuffix("_days"): days for name, days in self.model_dump().items()}


class HistorySinkSettings(StrictModel):
    """Settings of the process that stores the log's records in ClickHouse."""

    url: str = Field(
        default="http://127.0.0.1:18123",
        pattern=r"^https?://[^/?#\s@]+/?$",
        description="ClickHouse HTTP address: the history server's or a ClickHouse's; http://host:port",
    )
    user: str = Field(default="fabrictime", min_length=1, description="ClickHouse user")
    password_file: Path | None = Field(
        default=None,
        description="file that holds the user's password (the history server's write token); none: empty",
    )
    retention: RetentionSettings = Field(default_factory=RetentionSettings, description="days kept, by table")
    batch_bytes: int = quantity(
        4 * 1024 * 1024,
        (1024, 32 * 1024 * 1024),
        "bytes of messages of one topic at which an insert is sent at once",
    )
    batch_ms: int = quantity(1_000, (10, 60_000), "ms after which a smaller insert is sent")
    batch_messages: int = quantity(
        2_000, (1, 100_000), "messages of one topic at which an insert is sent at once"
    )
    insert_timeout_s: float = quantity(30.0, (1, 600), "s that one insert may take")
    retry_ms: int = quantity(250, (10, 60_000), "ms before the first retry; doubles each time")
    retry_max_ms: int = quantity(5_000, (10, 600_000), "ms between retries at most")
