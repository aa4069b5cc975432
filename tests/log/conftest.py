"""Helpers of the embedded log's own tests: batches, and the log as a process that can be killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from fabrictime.log.broker import Broker
from fabrictime.log.groups import Coordinator
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.requests.base import Peer
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import read_head
from tests.record_batch import build_batch
from tests.waiting import wait_until

SMALL_DISK = Path(__file__).with_name("full_disk.py")


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., bytearray]:
    return build_batch


@pytest.fixture(scope="session")
def parse() -> Callable[[bytes], list[tuple[int, bytes | None, bytes | None]]]:
    """Reads whole batches as (offset, key, value), checking every checksum, with aiokafka's parser."""

    def read(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
        found = []
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            batch = DefaultRecordBatch(data[position : position + size])
            assert batch.validate_crc()
            found += [(record.offset, record.key, record.value) for record in batch]
            position += size
        return found

    return read


class LogProcess:
    """`python -m fabrictime.log` on a directory and a port of its own."""

    def __init__(self, folder: Path, command: list[str], **settings: Any) -> None:
        self.folder = folder
        self.host = settings.get("host", "127.0.0.1")
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as sock:
            sock.bind((self.host, 0))
            self.port = sock.getsockname()[1]
        self.settings = {
            "directory": str(folder / "data"),
            "port": self.port,
            "create_topics": False,
            "min_free_bytes": 0,
            "housekeeping_ms": 100,
            **settings,
        }
        self.command = [*command, sys.executable, "-m", "fabrictime.log"]
        self.starts = 0
        self.start()

    @property
    def bootstrap(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def output(self) -> str:
        return self._errors.read_text()

    def start(self) -> None:
        self.starts += 1
        self._errors = self.folder / f"stderr-{self.starts}"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*self.command, json.dumps(self.settings)], stderr=errors, cwd=Path.cwd()
            )
        wait_until(lambda: "listening on" in self.output or self.process.poll() is not None)
        if self.process.returncode == 77:
            pytest.skip(self.output.strip())
        assert self.process.poll() is None, self.output

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024


@pytest.fixture
def start_log(tmp_path: Path) -> Iterator[Callable[..., LogProcess]]:
    started: list[LogProcess] = []

    def start(disk_size: str | None = None, **settings: Any) -> LogProcess:
        folder = tmp_path / f"log-{len(started)}"
        folder.mkdir()
        command = []
        if disk_size is not None:
            (folder / "data").mkdir()
            command = [sys.executable, str(SMALL_DISK), str(folder / "data"), disk_size]
        started.append(LogProcess(folder, command, **settings))
        return started[-1]

    yield start
    for log in started:
        if log.process.poll() is None:
            assert log.stop() == 0, log.output
        assert "Traceback" not in log.output, log.output


class Harness:
    """A broker without a socket."""

    def __init__(self, folder: Path) -> None:
        options = LogSettings(directory=folder, create_topics=False, min_free_bytes=0, group_join_delay_ms=0)
        self.store = Store(options)
        self.store.create_topic("t", 2, {})
        self.offsets = OffsetStore(folder)
        self.groups = Coordinator(options)
        self.broker = Broker(options, Peer("127.0.0.1", 0), self.store, self.offsets, self.groups)

    async def ask(self, frame: bytes) -> bytes | None:
        """Returns the response's bytes; what would wait for a long time is given up."""
        view = memoryview(bytearray(frame))
        head = read_head(view)
        result = self.broker.handle(head, view, Peer("127.0.0.1", 1))
        if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            future = asyncio.ensure_future(result)
            done, _ = await asyncio.wait([future], timeout=0.01)
            if not done:
                future.cancel()
                await asyncio.wait([future])
                return None
            result = future.result()
        return None if result is None else b"".join(part for part in result if isinstance(part, bytes))

    def close(self) -> None:
        self.groups.close()
        self.offsets.close()
        self.store.close()


@pytest.fixture
def harness(tmp_path):
    """Makes a harness inside the running loop."""
    made = []

    def make():
        made.append(Harness(tmp_path))
        return made[0]

    yield make
    for one in made:
        one.close()


def frame(key: int, version: int, body: bytes, client: bytes = b"\x00\x01c") -> bytes:
    return struct.pack(">hhi", key, version, 7) + client + body
