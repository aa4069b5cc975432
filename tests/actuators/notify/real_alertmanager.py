"""A real Alertmanager of the system's package, with a configuration and folders of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
AMTOOL = shutil.which("amtool")
CONFIG = """
route:
  receiver: people
  group_by: [alertname, shard]
  group_wait: 200ms
  group_interval: 300ms
  repeat_interval: 1h
receivers:
- name: people
  webhook_configs:
  - url: {url}
    send_resolved: true
"""


class RealAlertmanager:
    """A running Alertmanager."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v2/{path}", timeout=10) as answer:
            return json.load(answer)

    def alerts(self) -> list[dict[str, Any]]:
        return list(self.get("alerts"))

    def amtool(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(AMTOOL), f"--alertmanager.url={self.url}", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_alertmanager(folder: Path, webhook_url: str) -> Iterator[RealAlertmanager]:
    """Start an Alertmanager whose webhook goes to `webhook_url`; skip where it is not installed."""
    if PROGRAM is None or AMTOOL is None:
        pytest.skip("prometheus-alertmanager is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "alertmanager.yml"
    config.write_text(CONFIG.format(url=webhook_url))
    port = free_port()
    arguments = (
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )
    with (folder / "output").open("w") as output:
        process = subprocess.Popen([PROGRAM, *arguments], stdout=output, stderr=subprocess.STDOUT)
    try:
        server = RealAlertmanager(port)

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "output").read_text()[-1000:]
            try:
                return bool(server.get("status"))
            except OSError:
                return False

        wait_until(is_ready)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
