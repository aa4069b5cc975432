"""Volume claims, by the real client against an API server on loopback. No real cluster was tried."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.audit.host.base import VOLUME
from producers.audit.host.live import LiveHost
from producers.audit.storage import volume
from producers.audit.storage.volume import Claims, NoCluster, Refused, bound_s, claim_name
from tests.actuators.kubernetes_server import KubernetesServer

pytest.importorskip("kubernetes", reason="the package kubernetes is missing (extra kubernetes)")

DEFAULT = {volume.DEFAULT: "true"}
FAST = {"metadata": {"name": "fast", "annotations": DEFAULT}, "volumeBindingMode": "WaitForFirstConsumer"}
SLOW = {"metadata": {"name": "slow"}, "volumeBindingMode": "Immediate"}
NAME = "fabrictime-audit-h1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    monkeypatch.setattr(volume, "POLL_S", 0.01)
    with KubernetesServer().running() as found:
        found.classes = [SLOW, FAST]
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path / "config")))
        yield found


def test_a_claim_is_bound_and_deleted(server: KubernetesServer) -> None:
    found = bound_s(Claims("audit"), NAME, "", "h1", 30.0)
    assert found is not None
    assert 0 < found < 30
    (created,) = server.created
    assert created["metadata"]["annotations"] == {volume.NODE: "h1"}
    assert created["spec"]["storageClassName"] == "fast"
    assert server.claims == {}


def test_a_class_that_binds_at_once_gets_no_node(server: KubernetesServer) -> None:
    assert bound_s(Claims("audit"), NAME, "slow", "h1", 30.0) is not None
    assert server.created[0]["metadata"].get("annotations", {}) == {}
    with pytest.raises(Refused, match="no storage class none"):
        bound_s(Claims("audit"), NAME, "none", "h1", 30.0)
    server.classes = [SLOW]
    with pytest.raises(Refused, match="no default storage class"):
        bound_s(Claims("audit"), NAME, "", "h1", 30.0)
    assert len(server.created) == 1


def test_a_claim_that_is_not_bound_is_deleted(server: KubernetesServer) -> None:
    server.binds_after = 10**9
    assert bound_s(Claims("audit"), NAME, "", "h1", 0.2) is None
    assert server.claims == {}


def test_a_claim_that_an_earlier_run_left_is_deleted_first(server: KubernetesServer) -> None:
    server.claims[NAME] = {"metadata": {"name": NAME}, "reads": 0, "old": True}
    assert bound_s(Claims("audit"), NAME, "", "h1", 30.0) is not None
    assert server.claims == {}


def test_a_claim_is_deleted_after_a_refusal(server: KubernetesServer) -> None:
    server.refused_posts = 5
    with pytest.raises(Refused, match="500"):
        bound_s(Claims("audit"), NAME, "", "h1", 30.0)
    assert server.created
    assert server.claims == {}


def test_a_signal_deletes_the_claim(server: KubernetesServer) -> None:
    """The process ends by SIGTERM while it waits."""
    server.binds_after = 10**9
    waits = threading.Event()
    server.on_read = lambda name: waits.set() if server.claims else None
    child = subprocess.Popen(
        [sys.executable, "-m", "producers.audit.storage.volume", "audit", "", "60"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waits.wait(60)
    child.send_signal(signal.SIGTERM)
    _, complaint = child.communicate(timeout=60)
    assert "ended by signal 15" in complaint
    assert len(server.created) == 1
    assert server.claims == {}


def test_the_command_prints_the_delay(server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < json.loads(LiveHost().load(60.0, VOLUME, "audit", "", "30"))["bound_s"] < 30
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    assert "missing" in json.loads(LiveHost().load(60.0, VOLUME, "audit", "", "30"))


def test_without_a_cluster_or_with_a_wrong_token(
    server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "other", token="wrong")))
    with pytest.raises(Refused, match="401"):
        bound_s(Claims("audit"), NAME, "", "h1", 30.0)
    server.answer = (200, b"no JSON")
    with pytest.raises(Refused, match="no JSON"):
        bound_s(Claims("audit"), NAME, "", "h1", 30.0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NoCluster, match="no cluster"):
        Claims("audit")


def test_names_of_claims() -> None:
    assert claim_name("Node_7.example.org") == "fabrictime-audit-node-7-example-org"
    assert len(claim_name("x" * 200)) == 63
