"""Removes and recreates a resource of a running pipeline, and measures the time until recovery."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Progress
from fabrictime.bench._fabric import CannotRun, state_of
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.field._small_network import SmallNetwork
from fabrictime.history.http import WRITE_USER
from fabrictime.runtime import status
from schemas.kafka import END
from schemas.kafka.offset_reader import OffsetReader
from schemas.kafka.reader import TopicReader
from schemas.records import AlertState, Severity
from schemas.topics import ALERTS, COLLECTIVES, TOPICS

LIMIT_S: Final = 40.0
"""Time after which a thing counts as not recovered."""
MADE_AGAIN_S: Final = 2.0
"""Time between the removal of a thing and its return."""
NICS: Final = 3
POLL_S: Final = 0.2
SAMPLES: Final = re.compile(r"(\d+) samples")
BENCH: Final = "fabrictime-bench"
GROWTH_S: Final = 2.0
GROWTH_INTERVALS: Final = 3
"""A topic that gets a message in each of so many intervals gets messages all the time."""


@dataclass(slots=True)
class Outcome:
    """The results of a run: recovery times, false alerts, and resources that cannot be recreated here."""

    times_s: dict[str, float | None] = field(default_factory=dict)
    """Maps thing to the time until it had recovered; None if it had not."""
    false_alerts: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Maps thing that cannot be made again on this machine to the reason."""


class Growth:
    """Reports whether each topic with continuous messages got a message after a resource was recreated."""

    def __init__(self, log: str) -> None:
        with contextlib.closing(OffsetReader(log, TOPICS.values(), BENCH)) as reader:
            counts = [_messages(reader)]
            for _ in range(GROWTH_INTERVALS):
                time.sleep(GROWTH_S)
                counts.append(_messages(reader))
        self._topics = [
            topic for topic in TOPICS if all(now[topic] > was[topic] for was, now in pairwise(counts))
        ]
        self._reader = OffsetReader(log, [TOPICS[name] for name in self._topics], BENCH)
        self._reader.ends()
        self._begin: dict[str, int] | None = None

    def begin(self) -> None:
        """Count messages from the next call of `is_seen` on."""
        self._begin = None

    def is_seen(self) -> bool:
        """Return whether every such topic has got a message. A missing topic has got none."""
        try:
            messages = _messages(self._reader)
        except ValueError:
            return False
        begin = messages if self._begin is None else self._begin
        # a log that lost its data begins at 0
        self._begin = {topic: min(begin[topic], messages[topic]) for topic in self._topics}
        return all(messages[topic] > self._begin[topic] for topic in self._topics)

    @property
    def topics(self) -> str:
        """The names of the observed topics."""
        return ", ".join(self._topics)


def is_well(data: Path) -> bool:
    """Return whether all services of the `up` in `data` work and no evidence is missing."""
    state = state_of(data)
    return state is not None and not status.wrong(state)


def _messages(reader: OffsetReader) -> Counter[str]:
    """Return the number of messages ever appended to each topic. Raises LogUnavailable."""
    counts = Counter[str]()
    for (topic, _), end in reader.ends().items():
        counts[topic] += end
    return counts


class Remade:
    """A running pipeline and its network, whose resources the bench recreates."""

    def __init__(self, network: SmallNetwork, data: Path, progress: Progress, outcome: Outcome) -> None:
        self.network, self.data = network, data
        self.progress, self.outcome = progress, outcome
        state = state_of(data) or {}
        self.up: int = state["pid"]
        """Process id of the pipeline."""
        self.addresses: dict[str, str] = state["addresses"]
        self.alerts = TopicReader.open(self.log, {ALERTS: END})
        self._growth = Growth(self.log)
        progress(f"remade: topics that grow all the time: {self._growth.topics}")

    @property
    def log(self) -> str:
        """The address of the log."""
        return self.addresses["log"]

    def pids(self, prefix: str) -> dict[str, int]:
        """Return the process id of each running service whose name begins with `prefix`, by name."""
        state = state_of(self.data)
        rows = [] if state is None else state["children"]
        return {row["name"]: row["pid"] for row in rows if row["name"].startswith(prefix) and row["pid"]}

    def signal(self, prefix: str, number: signal.Signals) -> None:
        """Send a signal to each service whose name begins with `prefix`."""
        for pid in self.pids(prefix).values():
            os.kill(pid, number)

    def samples(self) -> dict[str, int]:
        """Return the samples that each prober reports."""
        state = state_of(self.data)
        rows = [] if state is None else state["children"]
        found = {
            row["name"]: SAMPLES.search(row["status"]) for row in rows if row["name"].startswith("prober")
        }
        return {name: int(match[1]) for name, match in found.items() if match is not None}

    def measure(
        self, name: str, remake: Callable[[], object], touched: str = "", also: Callable[[], bool] = bool
    ) -> None:
        """Recreate a resource and wait until the pipeline has recovered; `touched` may have alerts.

        `also` is a further condition of recovery. A resource that cannot be recreated here counts as missing.
        """
        self.progress(f"remade: {name}")
        try:
            remake()
        except CannotRun as reason:
            self.progress(f"remade: {name}: {reason}")
            self.outcome.missing[name] = str(reason)
            return
        except Exception as error:  # noqa: BLE001  # a thing that cannot be remade has not recovered
            self.progress(f"remade: {name}: {type(error).__name__}: {error}")
            self.outcome.times_s[name] = None
            return
        growth, before = self._growth, self.samples()
        growth.begin()
        grown: dict[str, int] = {}

        def is_recovered() -> bool:
            for prober, samples in self.samples().items():
                # a prober that started again counts from 0
                grown[prober] = max(grown.get(prober, 0), samples - min(before.get(prober, 0), samples))
                before[prober] = min(before.get(prober, samples), samples)
            answering = len(grown) >= NICS and min(grown.values()) > 0
            fed = growth.is_seen()
            return answering and fed and is_well(self.data) and (also is bool or also())

        took_s = wait_for(is_recovered, LIMIT_S, POLL_S)
        self.outcome.times_s[name] = took_s
        self.progress(f"remade: {name}: {'not recovered' if took_s is None else f'{took_s:.1f} s'}")
        self._count_alerts(name, touched)

    def _count_alerts(self, name: str, touched: str) -> None:
        with contextlib.suppress(ValueError):
            messages = self.alerts.poll(1.0)
            for _, alert in self.alerts.decoded(messages):
                is_new = alert is not None and alert["state"] == AlertState.RAISED and alert["update"] == 0
                if not is_new or alert["severity"] == Severity.INFO:
                    continue
                subjects = {alert["subject"], *alert["nics"], *alert["grouped"]}
                if not touched or not any(touched in subject for subject in subjects):
                    self.outcome.false_alerts.append(f"{name}: {alert['alert_id']}: {alert['text']}")

    def sql(self, statement: str) -> str:
        """Return the history's answer to an SQL statement. Raises OSError."""
        token = (self.data / "secrets" / "history-write.token").read_text(encoding="utf-8").strip()
        url = f"{self.addresses['history']}/?{urllib.parse.urlencode({'query': statement})}"
        headers = {"X-ClickHouse-User": WRITE_USER, "X-ClickHouse-Key": token}
        request = urllib.request.Request(url, b"", headers)  # noqa: S310  # our own history
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            text: str = response.read().decode()
        return text

    def has_rows(self, table: str) -> bool:
        """Return whether a table of the history has rows."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.sql(f"SELECT count() FROM fabrictime.{table}")) > 0
        return False


class Operations:
    """Reads the records of jobs' operations from now on."""

    def __init__(self, remade: Remade) -> None:
        self._reader = TopicReader.open(remade.log, {COLLECTIVES: END})
        self._records: list[Any] = []

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def has(self, is_wanted: Callable[[Any], bool]) -> bool:
        """Return whether any published record satisfies `is_wanted`."""
        with contextlib.suppress(ValueError):
            messages = self._reader.poll(0.1)
            self._records += [record for _, record in self._reader.decoded(messages) if record is not None]
        return any(map(is_wanted, self._records))
