"""How the client library asks the log for more: aiokafka 0.14 has no settings for it.

In: an app or a consumer that has started. Out: its fetcher, set up. The library has one request under way at
a time, for the partitions of which nothing waits to be worked on. Where it asks ahead while some still wait,
it would leave these out for as long as the others have nothing to say: those wait AHEAD_WAIT_MS only.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["tune_consumer", "tune_fetches"]

AHEAD_WAIT_MS: Final = 3


def tune_fetches(app: Any, read_ahead_s: float, wait_ms: int, least_bytes: int = 1) -> None:
    """Set how a Faust app asks the log, once its consumer has started (Faust 0.15.3).

    `read_ahead_s`: how soon it asks again while messages are being worked on. `wait_ms`: how long a request
    waits for `least_bytes`. The library has 100 ms and 1.5 s.
    """
    fetcher = app.consumer._thread._consumer._fetcher
    fetcher._fetch_min_bytes = least_bytes
    _tune(fetcher, read_ahead_s, wait_ms, AHEAD_WAIT_MS if least_bytes == 1 else wait_ms)


def tune_consumer(consumer: Any, read_ahead_s: float, wait_ms: int) -> None:
    """Set the same for an AIOKafkaConsumer that has started."""
    _tune(consumer._fetcher, read_ahead_s, wait_ms, AHEAD_WAIT_MS)


def _tune(fetcher: Any, read_ahead_s: float, wait_ms: int, ahead_ms: int) -> None:
    actions = type(fetcher)._get_actions_per_node

    def with_wait(assignment: Any) -> Any:
        fetcher._fetch_max_wait_ms = min(ahead_ms, wait_ms) if fetcher._records else wait_ms
        return actions(fetcher, assignment)

    fetcher._prefetch_backoff = read_ahead_s
    fetcher._get_actions_per_node = with_wait
