"""The transport bench: the product's worker counts messages of a real log."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.pipeline import transport
from fabrictime.bench.pipeline._counter import COUNT_EVERY


def test_a_worker_counts_all_messages_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "QUICK_MESSAGES", COUNT_EVERY)
    monkeypatch.setattr(transport, "QUICK_LIMIT_S", 60.0)
    figure = transport._measured("small", 1, print, quick=True)
    assert isinstance(figure, Figure), figure
    assert figure.value > 100
    assert figure.note is not None
    assert figure.note.startswith(f"{COUNT_EVERY:,} messages")
