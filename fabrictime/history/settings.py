"""Settings of the history server: data directory, address and limits."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, field_validator

from schemas.strict_model import StrictModel, quantity


class HistorySettings(StrictModel):
    """The `[history]` table of the configuration: data directory, address and limits."""

    directory: Path = Field(description="where chdb keeps its data and its lock file; made owner-only")
    host: str = Field(default="127.0.0.1", description="loopback address to listen on")
    port: int = quantity(18123, (0, 65535), "TCP port to listen on; 0 takes a free one")
    write_token_file: Path | None = Field(
        default=None,
        description="file with the password of user 'fabrictime', which may write; created if missing; "
        "default: <directory>/write.token",
    )
    read_token_file: Path | None = Field(
        default=None,
        description="file with the password of user 'reader', which may only read the project's tables; "
        "created if missing; default: <directory>/read.token",
    )
    memory_limit_mib: int = quantity(2048, (512, 1_048_576), "MiB that the engine may use in all")
    query_memory_limit_mib: int = quantity(1024, (64, 1_048_576), "MiB that one query may use")
    query_limit_s: float = Field(
        default=30.0, gt=0, le=3600, description="s that one reader's query may take"
    )
    result_limit_mib: int = quantity(256, (1, 16_384), "MiB of one query's result at most")
    request_limit_mib: int = quantity(128, (1, 4096), "MiB of one request's body at most, packed or unpacked")
    query_threads: int = quantity(4, (1, 64), "queries that run at the same time")
    insert_threads: int = quantity(2, (1, 64), "inserts that run at the same time")
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
        """Path of the file with the token for writing."""
        return self.write_token_file or self.directory / "write.token"

    @property
    def read_token_path(self) -> Path:
        """Path of the file with the token for reading."""
        return self.read_token_file or self.directory / "read.token"
