"""Settings of the history server: data directory, address and limits."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator


class HistorySettings(BaseModel):
    """The `[history]` part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path = Field(description="where chdb keeps its data and its lock file; made owner-only")
    host: str = Field(default="127.0.0.1", description="loopback address to listen on")
    port: int = Field(default=18123, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one")
    write_token_file: Path | None = Field(
        default=None,
        description=(
            "file with the password of user 'fabrictime', which may write; created if missing; default: "
            "<directory>/write.token"
        ),
    )
    read_token_file: Path | None = Field(
        default=None,
        description=(
            "file with the password of user 'reader', which may only read the project's tables; created "
            "if missing; default: <directory>/read.token"
        ),
    )
    memory_limit_mib: int = Field(
        default=2048, ge=512, le=1_048_576, description="MiB that the engine may use in all"
    )
    query_memory_limit_mib: int = Field(
        default=1024, ge=64, le=1_048_576, description="MiB that one query may use"
    )
    query_limit_s: float = Field(
        default=30.0, gt=0, le=3600, description="s that one reader's query may take"
    )
    result_limit_mib: int = Field(
        default=256, ge=1, le=16_384, description="MiB of one query's result at most"
    )
    request_limit_mib: int = Field(
        default=128, ge=1, le=4096, description="MiB of one request's body at most, packed or unpacked"
    )
    query_threads: int = Field(default=4, ge=1, le=64, description="queries that run at the same time")
    insert_threads: int = Field(default=2, ge=1, le=64, description="inserts that run at the same time")
    session_limit_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="s that an HTTP session (session_id) outlives its last request",
    )

    @field_validator("host")
    @classmethod
    def _loopback(cls, value: str) -> str:
        try:
            loopback = ipaddress.ip_address(value).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError(f"host {value!r}: expected a loopback address such as 127.0.0.1")
        return value

    @property
    def write_token_path(self) -> Path:
        """The file of the write token."""
        return self.write_token_file or self.directory / "write.token"

    @property
    def read_token_path(self) -> Path:
        """The file of the read token."""
        return self.read_token_file or self.directory / "read.token"
