"""Settings of the notifier, which sends alerts to people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from actuators.notify.runbooks import DOCUMENTATION
from schemas.kafka.settings import KAFKA, KafkaSettings
from schemas.strict_model import StrictModel, quantity

LabelName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of a label: Alertmanager refuses each alert that has another one."""


class ReceiverSettings(StrictModel):
    """A receiver of alerts. Addresses that contain secrets are read from a file, like other secrets."""

    type: Literal["alertmanager", "webhook", "apprise"] = Field(
        description="alertmanager: Alertmanager's API v2; webhook: its webhook format; apprise: a service of "
        "the package apprise, which the extra notify installs"
    )
    url: str = Field(
        default="", description="address, if it has no secret; Alertmanager's without /api/v2/alerts"
    )
    url_file: Path | None = Field(default=None, description="file with the one address; for apprise always")
    token_file: Path | None = Field(default=None, description="file with a bearer token")
    ca_file: Path | None = Field(default=None, description="PEM file of the authorities that sign its TLS")
    timeout_s: float = quantity(10.0, (0.1, 120), "s within which the receiver must answer")
    min_severity: Literal["INFO", "WARNING", "CRITICAL"] = Field(
        default="INFO", description="alerts below are not sent"
    )


class NotifySettings(StrictModel):
    """Settings of the notifier. It runs under `up` if there are receivers."""

    kafka: KafkaSettings = KAFKA
    group: str = Field(
        default="fabrictime-notify",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="consumer group of the positions; each receiver appends its name",
    )
    receivers: dict[str, ReceiverSettings] = Field(
        default_factory=dict,
        description="receivers by name, as [notify.receivers.NAME]; docs/alerts.md lists their keys",
    )
    group_wait_s: float = quantity(
        5.0, (0, 600), "s that a webhook or apprise waits for more alerts of one kind and shard"
    )
    group_interval_s: float = quantity(
        30.0, (0, 86_400), "s between two notifications about one kind and shard"
    )
    repeat_interval_s: float = quantity(
        14_400.0,
        (1, 2_592_000),
        "s after which an active alert that nobody acknowledged is sent again; Alertmanager has its own",
    )
    max_per_minute: int = quantity(
        20, (1, 100_000), "notifications a minute and receiver; more wait, and are sent together"
    )
    resend_s: float = quantity(
        60.0, (0.1, 3600), "s between two transmissions of the active alerts to Alertmanager"
    )
    retry_max_s: float = quantity(30.0, (0.05, 3600), "longest pause before a receiver is tried again, s")
    runbook_url: str = Field(
        default=f"{DOCUMENTATION}/runbooks",
        description="address of the runbook pages, such as https:// of your copy",
    )
    page_url: str = Field(default="", description="address of the live page, for links to it")
    labels: dict[LabelName, str] = Field(
        default_factory=dict, description="further labels of each alert, such as cluster"
    )
