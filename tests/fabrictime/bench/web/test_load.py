"""The bench of the page's load: ratios, static copies of the page, and the records of the present."""

from __future__ import annotations

import functools
import multiprocessing
import threading
import time
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench.web import PARTS, TARGETS, load
from fabrictime.bench.web._recorded import PARTITIONS, recorded, write_log
from fabrictime.bench.web.load import _publish, _Quiet, ratio
from producers.sim.settings import SimSettings
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.topics import CLOCK_OFFSETS

S = 1_000_000_000


def test_a_ratio_is_that_of_the_95th_percentiles() -> None:
    figure = ratio([100.0] * 19 + [300.0], [50.0] * 20)
    assert figure.value == pytest.approx(110 / 50)
    assert figure.note == "110 ms, the static page 50 ms, 20 loads"


def test_each_figure_of_the_load_has_a_target() -> None:
    assert set(PARTS["load"]) <= TARGETS.keys()


def test_static_copies_are_served_without_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "now.html").write_text("<!doctype html><p>Now")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/now") as answer:
            assert answer.read() == b"<!doctype html><p>Now"
            assert answer.headers["Content-Type"] == "text/html"
        server.shutdown()
        thread.join()


def test_records_are_published_with_the_times_of_the_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PERIOD_S", 1)
    monkeypatch.setattr(load, "LIVE_S", 2)
    records = recorded(SimSettings(nics=8, rate_pps=20), 1, time.time_ns() - 3600 * S)
    write_log(tmp_path / "log", ())
    has_begun, late_s = threading.Event(), multiprocessing.Value("d", 0.0)
    with SteppedLog(tmp_path / "log", PARTITIONS) as log:
        _publish(log.bootstrap, records, has_begun, late_s)
        with TopicReader.open(log.bootstrap, {CLOCK_OFFSETS: BEGINNING}) as reader:
            messages = list(reader.read_to_end())
    assert has_begun.is_set()
    assert 0 < late_s.value < 60
    assert len(messages) == 2 * sum(record.topic == CLOCK_OFFSETS.name for record in records)
    ends_ns = [message.decoded(CLOCK_OFFSETS)["window_end_ns"] for message in messages]
    ages_s = [(message.append_ns - end) / S for message, end in zip(messages, ends_ns, strict=True)]
    assert all(0 < age < 60 for age in ages_s)
