"""Runs the embedded log in a thread, with a clock of append time that can step, as that of a Kafka broker.

For benches and tests of log time that jumps, runs backwards or differs between leaders.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Self

from fabrictime.log.server import LogServer
from fabrictime.log.settings import LogSettings

CALL_S: Final = 20.0


class SteppedLog:
    """An embedded log whose append time is the system clock plus `wrong_s`."""

    def __init__(self, directory: Path, partitions: int) -> None:
        """Start the log in its own thread; `bootstrap` is then its address."""
        self.wrong_s = 0
        settings = LogSettings(
            directory=directory, port=0, partitions=partitions, min_free_bytes=0, group_join_delay_ms=50
        )
        self._server = LogServer(settings, self._clock(lambda: self.wrong_s))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepped log", daemon=True)
        self._thread.start()
        self._run(self._server.start())
        self.bootstrap = f"127.0.0.1:{self._server.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _clock(wrong_s: Callable[[], int]) -> Callable[[], int]:
        return lambda: time.time_ns() // 1_000_000 + wrong_s() * 1000

    def change_leader(self, wrong_s: int) -> None:
        """Move every second partition of each topic to a leader whose clock is off by `wrong_s`."""
        clock = self._clock(lambda: wrong_s)
        for topic in list(self._server.store.topics.values()):
            for partition in topic.partitions[::2]:
                partition._now_ms = clock

    def close(self) -> None:
        """Stop the log and its thread."""
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)
