"""A history server as its own process, records of delays, and clients for both users."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import clickhouse_connect
import pytest

from schemas import codec, tables
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60
CODE = """
import sys, logging
from pathlib import Path
from fabrictime.history.server import main
from fabrictime.history.settings import HistorySettings
logging.basicConfig(level=logging.INFO)
sys.exit(main(HistorySettings.model_validate_json(sys.argv[1])))
"""


class Server:
    """A history server process on a directory."""

    def __init__(self, directory, **settings):
        self.directory = Path(directory)
        self.settings = {"directory": str(directory), "port": 0, **settings}
        self.process = None
        self.port = None

    def spawn(self):
        from fabrictime.history.settings import HistorySettings

        settings = HistorySettings.model_validate(self.settings).model_dump_json()
        return subprocess.Popen(
            [sys.executable, "-c", CODE, settings],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self):
        lock = self.directory / "lock"
        lock.unlink(missing_ok=True)
        self.process = self.spawn()

        def address():
            if self.process.poll() is not None:
                raise AssertionError(self.process.stdout.read())
            text = lock.read_text() if lock.exists() else ""
            return re.search(rf"process {self.process.pid} .*:(\d+)\)", text)

        self.port = int(wait_until(address)[1])
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def token(self, user="fabrictime"):
        name = "write.token" if user == "fabrictime" else "read.token"
        return (self.directory / name).read_text().strip()

    def client(self, user="fabrictime", **options):
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=user, password=self.token(user), **options
        )

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE_S)
            finally:
                if self.process.poll() is None:
                    self.process.kill()
                    self.process.wait()
        if self.process is not None:
            self.process.stdout.close()
        return self.process.returncode if self.process else None


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("history") / "shared").start()
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path):
    servers = []

    def make(**settings):
        servers.append(Server(tmp_path / f"history{len(servers)}", **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def client(shared_server):
    """Return a writer on empty tables."""
    client = shared_server.client()
    for table in tables.TABLES:
        client.command(f"TRUNCATE TABLE fabrictime.{table}")
    yield client
    client.close()


@pytest.fixture
def reader(shared_server):
    client = shared_server.client("reader")
    yield client
    client.close()


def path_delay(peer="b/eth0", path=33434, **fields):
    """A PathDelay with 10 samples around 10 µs."""
    return {
        "peer": peer,
        "path": path,
        "count": 10,
        "lost": 1,
        "no_t3": 2,
        "dscp": 0,
        "ecn": 10,
        "forward_ce": 1,
        "reverse_ce": 0,
        **{
            f"{kind}_{level}_ns": 10_000.0
            for kind in ("forward", "reverse", "rtt")
            for level in ("min", "p50", "p99")
        },
        "bound_ns": 80.0,
        "forward_bucket": [52, 53],
        "forward_bucket_count": [7, 3],
        "reverse_bucket": [52],
        "reverse_bucket_count": [10],
        **fields,
    }


@pytest.fixture
def path_delays():
    """Return a factory of PathDelays records: `path_delays(nic, window, paths=…)`, with a recent window."""
    start_s = int(time.time()) - 60

    def make(nic="a/eth0", window=0, paths=None, **fields):
        start_ns = (start_s + window) * 1_000_000_000
        return {
            "nic": nic,
            "shard": "s0",
            "window": start_s + window,
            "part": 0,
            "parts": 1,
            "window_start_ns": start_ns,
            "window_end_ns": start_ns + 1_000_000_000,
            "state": "SYNCED",
            "paths": [path_delay()] if paths is None else paths,
            **fields,
        }

    make.path = path_delay
    make.encode = lambda record: codec.encode("PathDelays", record)
    return make
