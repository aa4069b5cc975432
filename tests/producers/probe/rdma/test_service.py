"""The RDMA prober as a process, over a log: two that find each other, what they say, how they end.

pyverbs and the devices are the test's (`fake_pyverbs`); real ones are in tests/rdma.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interpreter import interpreter

ROOT = Path(__file__).resolve().parents[4]
RUN = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO)
from producers.probe.rdma.service import main
from producers.probe.rdma.settings import RdmaProbeSettings
from producers.settings import NicSettings
settings, nic, sysfs = json.loads(sys.argv[1])
sys.exit(main(RdmaProbeSettings(**settings), NicSettings(**nic), Path(sysfs)))
"""
MODULES = ("enums", "addr", "cq", "device", "mr", "pd", "qp", "wr", "pyverbs_error")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(log: Any, key_file: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the service of a host's eth0, on its own loopback address, with `verbs` or without."""
    package = tmp_path / "with/pyverbs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "fake.py").write_text((Path(__file__).parent / "fake_pyverbs.py").read_text())
    for name in MODULES:
        (package / f"{name}.py").write_text(
            "from pyverbs.fake import *\nfrom pyverbs.fake import __getattr__, PyverbsError\n"
        )
    (tmp_path / "without/pyverbs").mkdir(parents=True)
    (tmp_path / "without/pyverbs/__init__.py").write_text("raise ImportError('no pyverbs in this test')")
    made: list[subprocess.Popen[str]] = []

    def begin(
        host: str,
        *,
        verbs: str = "with",
        state: str = "4: ACTIVE",
        device: str | None = "mlx5_0",
        stamps: bool = False,
        **settings: Any,
    ) -> subprocess.Popen[str]:
        pid = os.getpid()
        address = f"127.{pid // 250 % 125 + 1}.{pid % 250 + 1}.{len(made) + 1}"
        sysfs = tmp_path / f"sys-{host}"
        if device is not None:
            port = sysfs / f"class/infiniband/{device}/ports/1"
            texts = {
                "state": state,
                "link_layer": "Ethernet",
                "rate": "100 Gb/sec (4X EDR)",
                "gids/0": "0000:0000:0000:0000:0000:ffff:"
                + ":".join(bytes(map(int, address.split(".")))[i : i + 2].hex() for i in (0, 2)),
                "gid_attrs/types/0": "RoCE v2",
                "gid_attrs/ndevs/0": "eth0",
            }
            for name, text in texts.items():
                (port / name).parent.mkdir(parents=True, exist_ok=True)
                (port / name).write_text(text + "\n")
        common = {
            "kafka": {"bootstrap": log.bootstrap},
            "key_file": str(key_file),
            "announce_s": 1,
            "paths": 2,
            "timeout_ms": 3000,
            "verbs_python": interpreter(tmp_path / f"python-{len(made)}", tmp_path / verbs),
        }
        nic = {"host": host, "device": "eth0", "address": address}
        environment = {
            "PYTHONPATH": str(ROOT),
            "FAKE_ADDRESS": address,
            "FAKE_STAMPS": str(int(stamps)),
        }
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", RUN, json.dumps([common | settings, nic, str(sysfs)])],
                cwd=ROOT,
                env=os.environ | environment,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return made[-1]

    yield begin
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: int | None = signal.SIGTERM) -> tuple[int, str]:
    if number is not None:
        os.killpg(process.pid, number)  # as Ctrl-C and systemd do: its own process hears it too
    _, text = process.communicate(timeout=30)
    assert "Traceback" not in text, text
    return process.returncode, text


def samples(records: list[dict[str, Any]], nic: str) -> list[dict[str, Any]]:
    return [group for record in records if record["nic"] == nic for group in record["samples"]]


def test_two_probers_find_each_other_and_publish_samples_with_either_timestamps(
    start: Start, read: Callable[[str], Any]
) -> None:
    a, b = start("a", stamps=True), start("b")
    batches = read("fabric.probes").until(
        lambda found: (
            all(
                {(group["peer"], group["path"]) for group in samples(found, nic) if group["sent"]}
                == {(other, 50_176), (other, 50_177)}
                for nic, other in (("a/mlx5_0", "b/mlx5_0"), ("b/mlx5_0", "a/mlx5_0"))
            )
            and sum(len(group["sent"]) for group in samples(found, "a/mlx5_0")) > 200
        ),  # past the counter's wrap
        timeout_s=60,
    )
    for nic in ("a/mlx5_0", "b/mlx5_0"):
        own = [record for record in batches if record["nic"] == nic]
        assert [record["batch"] for record in own] == list(range(len(own)))
        for group in samples(batches, nic):
            assert group["lost"] == 0
            for out, stay, back in zip(group["forward"], group["turnaround"], group["reverse"], strict=True):
                assert 0 < out + back < 3e9, "both clocks' difference falls out"
                assert stay >= 0
    assert end(a)[0] == 0
    code, text = end(b)
    assert code == 0
    assert "tried again" not in text
    assert "stamps of user space (completion stamps: Operation not supported (errno 95))" in text
    reported = read("fabric.inventory").until(
        lambda found: sum(record["ud"] is None for record in found) == 2, timeout_s=30
    )
    first = {record["nic"]: record for record in reversed(reported)}
    assert {name: (record["stamp"], record["clock"]) for name, record in first.items()} == {
        "a/mlx5_0": ("HARDWARE", "a/mlx5_0"),
        "b/mlx5_0": ("USER", "b/system"),
    }
    assert first["a/mlx5_0"]["addresses"] == [], "UDP probers leave it alone"
    assert first["a/mlx5_0"]["ud"]["kind"] == "ROCE_V2"
    assert first["a/mlx5_0"]["stamp_error_ns"] == 1
    assert max(record["stamp_error_ns"] for record in reported if record["nic"] == "b/mlx5_0") > 0
    assert {record["probe_port"] for record in reported if record["ud"] is None} == {0}, "a goodbye"


def test_a_worker_that_dies_is_logged_and_restarted(start: Start, read: Callable[[str], Any]) -> None:
    a = start("a")
    inventory = read("fabric.inventory")
    (first, *_) = inventory.until(lambda found: bool(found), timeout_s=60)
    (edge,) = (int(child) for child in Path(f"/proc/{a.pid}/task/{a.pid}/children").read_text().split())
    os.kill(edge, signal.SIGKILL)
    reported = inventory.until(lambda found: found[-1]["run"] != first["run"], timeout_s=60)
    goodbye = next(record for record in reported if record["ud"] is None)
    assert goodbye["run"] == first["run"]
    code, text = end(a)
    assert code == 0
    assert text.count("a/mlx5_0: ended with -9; tried again every 10 s") == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"verbs": "without"},
            "a/eth0: no RDMA probes: .*: ImportError: no pyverbs in this test .*extra 'rdma'",
        ),
        ({"device": None}, "a/eth0: no RDMA probes: no RDMA device beneath eth0"),
        ({"device": "eth0"}, "a/eth0: no RDMA probes: the NIC is listed by its RDMA device"),
        ({"enabled": "off"}, "a/eth0: no RDMA probes: rdma_probes.enabled = 'off'"),
    ],
)
def test_without_a_usable_device_the_service_logs_the_reason_and_ends(
    start: Start, given: Any, expected: str
) -> None:
    code, text = end(start("a", **given), None)
    assert code == 0
    assert len(text.splitlines()) == 1
    assert re.search(expected, text), text


def test_a_device_that_is_down_is_logged_once_and_tried_again(start: Start) -> None:
    a = start("a", state="1: DOWN")
    assert a.stderr is not None
    assert "a/mlx5_0: mlx5_0: no port is active; tried again every 10 s" in a.stderr.readline()
    assert end(a) == (0, "")
