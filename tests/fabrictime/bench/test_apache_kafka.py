"""Apache Kafka for benches: why there is none, and a fetch that leaves nothing half-made."""

import shutil
import subprocess

import pytest

from fabrictime.bench import _apache_kafka
from fabrictime.bench._apache_kafka import NotAvailable


@pytest.mark.parametrize(("there", "missing"), [((), "no java"), (("java",), "no mvn")])
def test_a_missing_program_is_named(monkeypatch, there, missing):
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    with pytest.raises(NotAvailable, match=missing):
        _apache_kafka.jars()


def test_a_failed_fetch_names_its_first_line_and_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "\nno network\nmore\n")
    )
    with pytest.raises(NotAvailable, match=r"cannot be had by Maven: no network$"):
        _apache_kafka._fetch("mvn", "9", tmp_path, tmp_path / "kafka")
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_ends_while_it_starts_is_reported_with_its_last_line(tmp_path):
    output = tmp_path / "output"
    output.write_text("starting\nport in use\n")
    with subprocess.Popen(["false"]) as process:
        process.wait()
        with pytest.raises(NotAvailable, match="ended with 1: port in use"):
            _apache_kafka._wait(process, 1, output)
