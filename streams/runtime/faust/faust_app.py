"""Creates Faust apps with this project's settings, and sets how they fetch messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import faust
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.types.auth import CredentialsT

from schemas.kafka import rebootstrap
from schemas.kafka.settings import WORKER_METADATA_MS, KafkaSettings
from schemas.topics import MAX_MESSAGE_BYTES
from streams.runtime.faust.compat import NO_READ_AHEAD_S, run_consumer_in_loop, tune_fetcher
from streams.runtime.settings import StreamSettings

READ_AHEAD_S: Final = 0.015
URGENT_WAIT_MS: Final = 500
"""Longest wait of an urgent fetch, ms. It ends with the first message."""
GATHER_BYTES: Final = 1 << 20
"""Bytes after which a fetch that gathers messages returns without further wait."""


def fetch_at_once(app: Any) -> None:
    """Make an app's fetches return at the first message, once its partitions are assigned."""
    tune_fetcher(app, NO_READ_AHEAD_S, URGENT_WAIT_MS)


def gather_fetches(app: Any, wait_ms: int) -> None:
    """Make an app's fetches collect messages for `wait_ms`, once its partitions are assigned.

    A fetch of one message costs about the same as a fetch of twenty.
    """
    tune_fetcher(app, READ_AHEAD_S, wait_ms, GATHER_BYTES)


def build_app(name: str, settings: StreamSettings, datadir: Path) -> faust.App:
    """Return a Faust app with this project's settings, whose consumer delivers batches."""
    rebootstrap.install()
    app = faust.App(
        name,
        broker=[f"kafka://{address}" for address in settings.kafka.bootstrap.split(",")],
        broker_credentials=_credentials(settings.kafka),
        datadir=str(datadir),
        store="memory://",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        key_serializer="raw",
        value_serializer="raw",
        autodiscover=False,
        broker_session_timeout=float(settings.session_timeout_s),
        broker_heartbeat_interval=1.0,
        broker_rebalance_timeout=float(settings.session_timeout_s),
        broker_commit_interval=settings.commit_interval_ms / 1000,
        broker_check_crcs=False,
        stream_buffer_maxsize=settings.buffer_messages,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
        consumer_metadata_max_age_ms=WORKER_METADATA_MS,
        producer_metadata_max_age_ms=WORKER_METADATA_MS,
        consumer_max_fetch_size=settings.fetch_kib * 1024,
        producer_acks=-1,
        producer_linger=0.0,
        producer_max_request_size=MAX_MESSAGE_BYTES + 64 * 1024,
        worker_redirect_stdouts=False,
    )
    run_consumer_in_loop(app, settings.kafka)
    return app


def _credentials(cluster: KafkaSettings) -> CredentialsT | None:
    """Return a cluster's security settings as Faust credentials. Raises ValueError if unreadable."""
    options = cluster.aiokafka_options()
    context = options.get("ssl_context")
    if "sasl_oauth_token_provider" in options:
        return OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if cluster.sasl_mechanism is not None:
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=cluster.sasl_mechanism,
        )
    return None if context is None else SSLCredentials(context)
