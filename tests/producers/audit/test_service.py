"""The auditor as a process: a request on the log, its results, and a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from producers.audit.checks import CHECKS
from producers.audit.host.base import Missing
from producers.audit.load.round_nics import RoundNics
from producers.audit.load.traffic_plan import PAIR_CHECK
from producers.audit.report import AGENT
from producers.audit.service import audited_hosts, open_host
from producers.audit.settings import AuditSettings
from producers.settings import NicSettings
from schemas import codec
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditRun

NICS = [
    NicSettings(host=host, device=device, address=address, netns=netns, shard=shard)
    for host, device, address, netns, shard in (
        ("lo1", "eth0", "127.0.0.1", "/run/netns/lo1", "a"),
        ("lo1", "eth1", "127.0.0.2", "/run/netns/lo1", "b"),
        ("lo2", "lo", "127.0.0.3", None, "a"),
    )
]
_RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.audit.service import main
from producers.audit.settings import AuditSettings
from producers.settings import NicSettings
settings, nics = json.loads(sys.argv[1])
sys.exit(main(AuditSettings(**settings), [NicSettings(**nic) for nic in nics]))
"""


def test_a_host_has_the_namespace_and_interfaces_of_its_nics() -> None:
    assert audited_hosts(NICS, "h100") == {"lo1": ("lo1", "a", "h100"), "lo2": ("lo2", "a", "h100")}
    first, second = open_host(NICS, "lo1"), open_host(NICS, "lo2")
    assert (first.netns, first.nics) == ("/run/netns/lo1", ("eth0", "eth1"))
    assert (second.netns, second.nics) == (None, ("lo",))
    with pytest.raises(Missing, match="fabrictime audit traffic"):
        first.traffic_round()


def test_a_request_for_traffic_alone_gives_a_host_its_partners(log: Any) -> None:
    cluster = KafkaSettings(bootstrap=log.bootstrap)
    settings = AuditSettings(kafka=cluster)
    request = AuditRun(
        run="r1", requested_ns=1, hosts=["lo1", "lo2"], only=[PAIR_CHECK], active=True, limit_s=60
    )
    found = open_host(NICS, "lo1", settings, request, RoundNics(cluster)).traffic_round()
    assert (found.host, found.hosts, found.settings) == ("lo1", ("lo1", "lo2"), settings.traffic)
    for changes in ({"active": False}, {"hosts": []}, {"only": []}, {"only": [PAIR_CHECK, "node.uptime"]}):
        other = AuditRun(**{**request, **changes})  # type: ignore[typeddict-item]
        with pytest.raises(Missing):
            open_host(NICS, "lo1", settings, other, RoundNics(cluster)).traffic_round()


def test_a_request_is_answered_once_and_a_signal_ends_the_service(log: Any, read: Any) -> None:
    settings = {"kafka": {"bootstrap": log.bootstrap}, "every_s": 0}
    nics = [NicSettings(host=f"lo{n}", device="lo", address=f"127.0.0.{n}") for n in (1, 2)]
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps([settings, [nic.model_dump(mode="json") for nic in nics]])],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
    )
    only = ["node.uptime", "node.memory"]
    run = AuditRun(run="r1", requested_ns=time.time_ns(), hosts=[], only=only, active=False, limit_s=60)
    producer = Producer({"bootstrap.servers": log.bootstrap, "partitioner": "murmur2_random"})
    reader = read("fabric.audit")

    def requested(got: list[dict[str, Any]]) -> bool:
        """Repeat the request until the service, which reads from the end, has answered it."""
        producer.produce("fabric.audit.runs", codec.encode("AuditRun", run), "r1")
        producer.produce("fabric.audit.runs", b"odd", "r0")
        producer.flush(10)
        return len(got) >= 6

    try:
        reader.until(requested)
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=10)
        assert process.returncode == 0, text
        found = [(each["host"], each["check"]) for each in reader.records]
        names = sorted([*only, AGENT.check_id])
        assert sorted(found) == [(host, each) for host in ("lo1", "lo2") for each in names]
        assert {each["checks"] for each in reader.records} == {3}
        assert set(only) <= set(CHECKS)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
