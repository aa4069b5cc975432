"""Lets clients of aiokafka find a cluster whose brokers have all moved to other addresses.

aiokafka 0.14 contacts the configured addresses only at its start, and later only the brokers that it knows.
Once all of these have moved, it never reconnects (KIP-899 describes the same fault of the Java client).
librdkafka contacts the configured addresses again by itself.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError

_INSTALLED: Final = "_fabrictime_rebootstraps"
_log = logging.getLogger(__name__)


def install() -> None:
    """Make all clients of this process contact the configured addresses when no known broker answers.

    It replaces a private method, because the library offers no setting. A second call does nothing.
    """
    if hasattr(AIOKafkaClient, _INSTALLED):
        return
    setattr(AIOKafkaClient, _INSTALLED, True)
    known_only = AIOKafkaClient._metadata_update

    @functools.wraps(known_only)
    async def update(client: Any, metadata: Any, topics: Any) -> bool:
        if await known_only(client, metadata, topics):
            return True
        before = _addresses(client)
        try:
            await client.bootstrap()  # updates the brokers that the client knows
        except KafkaConnectionError:
            return False
        if _addresses(client) != before:
            _log.warning("log: its brokers have moved from %s to %s", before, _addresses(client))
        return bool(await known_only(client, metadata, topics))

    AIOKafkaClient._metadata_update = update


def _addresses(client: Any) -> str:
    return ", ".join(sorted(f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()))
