"""Settings of the web page: the `web` table of the TOML file."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, HttpUrl, IPvAnyNetwork, model_validator

from actuators.notify.runbooks import DOCUMENTATION
from schemas.kafka.settings import KafkaSettings
from schemas.signing import NO_CONTROL, ControlSettings
from schemas.strict_model import StrictModel, quantity


def is_loopback(name: str) -> bool:
    """Return whether a host name or address is that of the loopback interface."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class LoginSettings(StrictModel):
    """Users of the page. Without `users_file` and `proxies` there is no login, and the page can only read."""

    users_file: Path | None = Field(
        default=None,
        description="owner-only file with a line NAME ROLE TOKEN for each user; roles: look, configure, act. "
        "`fabrictime token` prints a line. It is read again after a change",
    )
    proxies: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="addresses or networks of reverse proxies that authenticate people; no other is believed",
    )
    proxy_header: str = Field(
        default="X-Forwarded-User",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="header in which a proxy names the user; the proxy must remove that of its clients",
    )
    proxy_roles: dict[str, Literal["look", "configure", "act"]] = Field(
        default_factory=dict, description="role by user that a proxy names; *: all others, by default look"
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="names in the page's addresses beside loopback, such as that of the proxy; none: any",
    )

    @property
    def is_set(self) -> bool:
        """Whether the settings allow a login."""
        return self.users_file is not None or bool(self.proxies)

    @model_validator(mode="after")
    def _named(self) -> LoginSettings:
        """Require `hosts` with `proxies`: else a foreign page in a user's browser could set the proxy's
        header.
        """
        if self.proxies and not self.hosts:
            raise ValueError("proxies: expected hosts as well, the names in the proxy's addresses")
        return self


class WebSettings(StrictModel):
    """Address of the web page, history endpoint, log address, and polling."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; another than loopback needs a login, see web.login",
    )
    port: int = quantity(8480, (0, 65535), "TCP port; 0: the system chooses one")
    login: LoginSettings = Field(default_factory=LoginSettings, description="users of the page")
    tls_certificate_file: Path | None = Field(
        default=None, description="certificate chain (PEM) of the page, for HTTPS; null: HTTP"
    )
    tls_key_file: Path | None = Field(default=None, description="private key (PEM) of that certificate")
    history_url: HttpUrl = Field(
        default=HttpUrl("http://127.0.0.1:18123"), description="ClickHouse HTTP endpoint of the history"
    )
    history_database: str = Field(
        default="fabrictime", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="database of the history"
    )
    history_user: str = Field(
        default="reader", min_length=1, description="user name for the history; read access is enough"
    )
    history_token_file: Path | None = Field(
        default=None,
        description="file with that user's token (its password), read at each connect; null: no token",
    )
    kafka: KafkaSettings | None = Field(
        default=None, description="Kafka cluster of the log with the fabric's state; null: no live tabs"
    )
    control: ControlSettings = NO_CONTROL
    refresh_ms: int = quantity(
        500, (100, 10_000), "ms between two polls of a query; a slow query lengthens it"
    )
    query_timeout_s: float = Field(
        default=10.0, gt=0, le=120, description="s after which a history query counts as failed"
    )
    stale_after_s: float = Field(
        default=5.0, gt=0, le=3600, description="s; older data raises the page's banner"
    )
    links_group: str = Field(
        default="fabrictime-links",
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
        default=f"{DOCUMENTATION}/runbooks",
        description="address of the runbook pages, such as https:// of your copy",
    )
    state_file: Path | None = Field(
        default=None,
        description="file with the state of this machine's services; null: the page knows of none",
    )
    port_file: Path | None = Field(
        default=None, description="file that receives the port, for a caller that chose port 0"
    )

    @model_validator(mode="after")
    def _protected(self) -> WebSettings:
        if not is_loopback(self.host) and not self.login.is_set:
            raise ValueError(f"host {self.host}: expected login.users_file or login.proxies as well")
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file: expected exactly together with tls_key_file")
        return self

    @property
    def scheme(self) -> str:
        """Scheme of the page's URLs: http or https."""
        return "http" if self.tls_certificate_file is None else "https"
