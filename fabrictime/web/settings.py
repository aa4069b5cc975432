"""Settings of the live page.

In: the `page` table of the one TOML file. Out: a checked, frozen model for `fabrictime.web.server.main`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, HttpUrl


class WebSettings(BaseModel):
    """Where the live page listens, which history it reads, and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; loopback by default")
    port: int = Field(8480, ge=0, le=65535, description="TCP port; 0: the system chooses one")
    history_url: HttpUrl = Field(
        HttpUrl("http://127.0.0.1:18123"), description="the ClickHouse HTTP endpoint that holds history"
    )
    history_database: str = Field(
        "fabrictime", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="its database"
    )
    history_user: str = Field(
        "reader", min_length=1, description="user name sent to history; reading is enough"
    )
    history_token_file: Path | None = Field(
        None,
        description="file with that user's token (its password), read at each connect; null: none is sent",
    )
    bootstrap: str | None = Field(
        None,
        pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas, of the log from which the fabric's "
        "state is read; null: no live tabs",
    )
    schema_registry_url: str | None = Field(
        None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    refresh_ms: int = Field(
        500, ge=100, le=10_000, description="ms between two polls of a view; a slow query stretches it"
    )
    query_timeout_s: float = Field(
        10.0, gt=0, le=120, description="s after which a query to history counts as failed"
    )
    stale_after_s: float = Field(
        5.0, gt=0, le=3600, description="s; data older than this raises the page's banner"
    )
    port_file: Path | None = Field(
        None, description="file that receives the port listened on, for a caller that chose port 0"
    )
