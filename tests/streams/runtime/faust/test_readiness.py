"""The worker's status: its partitions once all services are ready, and notes about subjects."""

from __future__ import annotations

import pytest

from streams.runtime.faust import readiness as module


class Notifier:
    sent: list[str]

    def notify(self, line: str) -> None:
        Notifier.sent.append(line)


@pytest.fixture(autouse=True)
def notifier(monkeypatch: pytest.MonkeyPatch) -> None:
    Notifier.sent = []
    monkeypatch.setattr(module, "ServiceNotifier", Notifier)


def test_notes_stand_behind_the_partitions_until_they_are_removed() -> None:
    readiness = module.Readiness()
    first, second = readiness.part(), readiness.part()
    readiness.note("queues of b", "slots are long")
    first(3)
    assert Notifier.sent == []
    second(4)
    assert Notifier.sent == ["STATUS=7 partitions; slots are long", "READY=1"]
    readiness.note("queues of b", "slots are long")
    readiness.note("queues of a", "slots are longer")
    assert Notifier.sent[2:] == ["STATUS=7 partitions; slots are longer; slots are long"]
    readiness.note("queues of a", "")
    readiness.note("queues of b", "")
    readiness.note("queues of c", "")
    assert Notifier.sent[3:] == ["STATUS=7 partitions; slots are long", "STATUS=7 partitions"]
