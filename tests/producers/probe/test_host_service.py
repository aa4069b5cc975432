"""The probers of one host in one process, on a real log."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.embedded_log import EmbeddedLog

ROOT = Path(__file__).resolve().parents[3]
RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.probe.host_service import main
from producers.settings import NicSettings, ProbeSettings
settings, nics = json.loads(sys.argv[1])
sys.exit(main(ProbeSettings(**settings), [NicSettings(**nic) for nic in nics]))
"""
_numbers = itertools.count(2)


def loopback(host: str) -> dict[str, Any]:
    pid = os.getpid()
    address = f"127.{pid // 250 % 125 + 1}.{pid % 250 + 1}.{next(_numbers)}"
    return {"host": host, "device": "lo", "address": address}


@pytest.fixture
def start(log: EmbeddedLog, key_file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def begin(*nics: dict[str, Any]) -> subprocess.Popen[str]:
        settings = {"kafka": {"bootstrap": log.bootstrap}, "key_file": str(key_file), "udp_port": 0}
        settings |= {"first_path_port": 0, "rate_pps": 200, "announce_s": 1, "paths": 2}
        command = [sys.executable, "-c", RUN, json.dumps([settings, nics])]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def samples_of(records: list[dict[str, Any]], nic: str) -> int:
    batches = [record for record in records if record["nic"] == nic]
    return sum(len(row["sent"]) for record in batches for row in record["samples"])


@pytest.mark.timeout(180)
def test_nics_of_one_process_probe_each_other_over_one_connection(
    start: Callable[..., subprocess.Popen[str]], read: Callable[[str], Any], log: EmbeddedLog
) -> None:
    process = start(*(loopback(host) for host in "abc"))
    records = read("fabric.probes").until(
        lambda found: all(samples_of(found, f"{host}/lo") > 50 for host in "abc"), 90
    )
    for host in "abc":
        own = [record for record in records if record["nic"] == f"{host}/lo"]
        assert [record["batch"] for record in own] == list(range(len(own)))
        peers = {row["peer"] for record in own for row in record["samples"]}
        assert peers == {f"{other}/lo" for other in "abc" if other != host}
    connections = [
        entry
        for entry in psutil.Process(process.pid).net_connections("tcp")
        if entry.raddr and entry.raddr.port == log.port
    ]
    assert len(connections) <= 4, "the producer's and the reader's, each with one for bootstrapping"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    nics = read("fabric.inventory").until(lambda found: sum(not r["probe_port"] for r in found) == 3, 60)
    assert {record["nic"] for record in nics if not record["probe_port"]} == {f"{host}/lo" for host in "abc"}


@pytest.mark.timeout(180)
def test_a_nic_without_its_address_does_not_stop_the_others(
    start: Callable[..., subprocess.Popen[str]], read: Callable[[str], Any]
) -> None:
    process = start(loopback("a"), loopback("b"), {"host": "c", "device": "lo", "address": "192.0.2.177"})
    read("fabric.probes").until(lambda found: samples_of(found, "a/lo") > 50, 90)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "c/lo: address 192.0.2.177 is not on this host" in text
