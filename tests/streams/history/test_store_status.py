"""A history that does not store is the sink's fault until all topics are stored again."""

from __future__ import annotations

from streams.history.store_status import StoreStatus

URL = "http://127.0.0.1:18123"


def test_the_fault_lasts_from_the_first_failure_to_the_last_return() -> None:
    lines: list[str] = []
    now_s = [100.0]
    status = StoreStatus(URL, lines.append, lambda: now_s[0])
    assert lines == ["STATUS=0 rows stored"], "not blank while the history is away from the start"
    lines.clear()
    now_s[0] = 101.0
    status.stored("fabric.delays", 1200)
    assert lines == ["STATUS=1,200 rows stored"]
    lines.clear()
    status.failed("fabric.delays", "no room")
    status.failed("fabric.links", "no room")
    assert lines == [
        f"X_FAULT=history {URL} does not store: no room",
        "STATUS=1,200 rows stored, 1 topics wait for 0 s",
    ]
    lines.clear()
    now_s[0] = 113.0
    status.failed("fabric.delays", "no room")
    assert lines == ["STATUS=1,200 rows stored, 2 topics wait for 12 s"]
    lines.clear()
    status.stored("fabric.delays", 5)
    assert lines == ["STATUS=1,205 rows stored, 1 topics wait for 12 s"]
    lines.clear()
    status.stored("fabric.links", 5)
    assert lines == ["X_FAULT=", "STATUS=1,210 rows stored"]


def test_the_status_is_reported_once_a_second() -> None:
    lines: list[str] = []
    now_s = [100.0]
    status = StoreStatus(URL, lines.append, lambda: now_s[0])
    for _ in range(100):
        status.stored("fabric.delays", 1)
        now_s[0] += 0.1
    assert 9 <= len(lines) <= 11


def test_a_long_error_is_cut() -> None:
    lines: list[str] = []
    StoreStatus(URL, lines.append).failed("fabric.delays", "x" * 1000)
    assert lines[1].startswith("X_FAULT=")
    assert len(lines[1]) < 300


def test_an_insert_that_another_sink_repeats_is_no_fault() -> None:
    lines: list[str] = []
    status = StoreStatus(URL, lines.append)
    status.failed("fabric.delays", "no room")
    status.forget("fabric.delays")
    status.forget("fabric.links")
    assert lines[-2:] == ["X_FAULT=", "STATUS=0 rows stored"]
