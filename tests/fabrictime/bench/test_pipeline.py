"""Services of benches: ready, failed with their output, and gone with their context."""

from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace

import pytest

from fabrictime.bench import _pipeline, _waiting
from fabrictime.bench._pipeline import Service, embedded_log_service, service


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make a module from code that a service runs."""

    def make(code: str) -> str:
        (tmp_path / "bench_service.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "bench_service"

    return make


READY = """
import json, os, signal, socket, sys
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.connect(os.environ["NOTIFY_SOCKET"])
notify.send(b"STATUS=listening on " + json.loads(sys.argv[1])["address"].encode())
notify.send(b"READY=1")
notify.close()
signal.pause()
"""


def test_a_service_is_ready_with_its_status_and_ends_with_the_context(module, tmp_path):
    with service(module(READY), {"address": "h:1"}, tmp_path) as started:
        assert started.status == "listening on h:1"
        assert 1 < started.peak_mb() < 500
        assert started.cpu_s() >= 0
    assert started.process.returncode is not None


def test_a_service_that_ends_is_reported_with_its_output(module, tmp_path):
    started = Service(module("import sys; sys.exit('no such topic')"), {}, tmp_path)
    with pytest.raises(RuntimeError, match="exit code 1: no such topic"):
        started.wait_ready()
    assert started.stop() == 1


def test_an_embedded_log_that_states_no_address_is_named(tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=count(0, 10).__next__, sleep=lambda wait_s: None)
    monkeypatch.setattr(_waiting, "time", clock)
    monkeypatch.setattr(_pipeline, "service", lambda *_: nullcontext(SimpleNamespace(status="")))
    with pytest.raises(TimeoutError, match="embedded log: not within 20 s"), embedded_log_service(tmp_path):
        pass
