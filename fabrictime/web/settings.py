"""Settings of the web page: the `web` table of the TOML file."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, HttpUrl

from schemas.kafka.settings import KafkaSettings
from schemas.strict_model import StrictModel, quantity


class WebSettings(StrictModel):
    """Address of the web page, history endpoint, log address, and polling."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; loopback by default")
    port: int = quantity(8480, (0, 65535), "TCP port; 0: the system chooses one")
    history_url: HttpUrl = Field(
        HttpUrl("http://127.0.0.1:18123"), description="ClickHouse HTTP endpoint of the history"
    )
    history_database: str = Field(
        "fabrictime", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="database of the history"
    )
    history_user: str = Field(
        "reader", min_length=1, description="user name for the history; read access is enough"
    )
    history_token_file: Path | None = Field(
        None, description="file with that user's token (its password), read at each connect; null: no token"
    )
    kafka: KafkaSettings | None = Field(
        None, description="Kafka cluster of the log with the fabric's state; null: no live tabs"
    )
    refresh_ms: int = quantity(
        500, (100, 10_000), "ms between two polls of a query; a slow query lengthens it"
    )
    query_timeout_s: float = Field(
        10.0, gt=0, le=120, description="s after which a history query counts as failed"
    )
    stale_after_s: float = Field(5.0, gt=0, le=3600, description="s; older data raises the page's banner")
    links_group: str = Field(
        "fabrictime-links",
        pattern=r"^[A-Za-z0-9._-]{1,80}$",
        description="consumer group of the links service, whose progress shows that health is evaluated",
    )
    window_ms: int = quantity(
        1000, (100, 60_000), "ms of a clock window; evidence is missing after five periods"
    )
    commit_interval_ms: int = quantity(
        1000, (50, 60_000), "ms between commits of that group, which count likewise"
    )
    runbook_url: str = Field(
        "docs/runbooks", description="address of the runbook pages, such as that of your copy"
    )
    state_file: Path | None = Field(
        None, description="file with the state of this machine's services; null: the page knows of none"
    )
    port_file: Path | None = Field(
        None, description="file that receives the port, for a caller that chose port 0"
    )
