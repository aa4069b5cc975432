"""How the client library asks the log for more: aiokafka 0.14 has no settings for it.

In: an app whose consumer has started. Out: its fetcher, set up. The library has one request under way at a
time, for the partitions of which nothing waits to be worked on. Where it asks ahead while some still wait,
these are left out for as long as the others have nothing to say: whoever must be quick does not ask ahead.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["NOT_AHEAD_S", "tune_fetcher"]

NOT_AHEAD_S: Final = 0.1
"""s that messages may wait to be worked on before others are asked for all the same."""


def tune_fetcher(app: Any, read_ahead_s: float, wait_ms: int, min_bytes: int = 1) -> None:
    """Set how a Faust app asks the log, once its consumer has started (Faust 0.15.3).

    `read_ahead_s`: how soon it asks again while messages are being worked on. `wait_ms`: how long a request
    waits for `min_bytes`. The library has 100 ms and 1.5 s.
    """
    fetcher = app.consumer._thread._consumer._fetcher
    fetcher._prefetch_backoff = read_ahead_s
    fetcher._fetch_max_wait_ms = wait_ms
    fetcher._fetch_min_bytes = min_bytes
