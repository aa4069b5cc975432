"""MPI programs on a fabric of namespaces: each rank in its host's network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.workload._jobs import compiled
from fabrictime.testbed.control import ControlClient, NoFabric, socket_path
from fabrictime.testbed.jobs.mpi import NoMpi, mpi_command
from fabrictime.testbed.processes.userns import namespaces_allowed

ROOT = Path(__file__).resolve().parents[3]
STATE = {"pid": 1, "nics": [{"nic": "h1/eth1", "host": "h1", "device": "eth1", "netns": "/run/netns/h1"}]}
START_S = 30


def test_unknown_hosts_are_refused(tmp_path: Path) -> None:
    if not shutil.which("mpirun"):
        pytest.skip("no MPI (Debian: apt-get install openmpi-bin libopenmpi-dev)")
    with pytest.raises(ValueError, match="host 'h9': expected hosts of the fabric, such as h1"):
        mpi_command(STATE, tmp_path, ["h1", "h9"], ["true"], job="j")


def test_without_mpi_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoMpi, match="apt-get install openmpi-bin"):
        mpi_command(STATE, tmp_path, ["h1"], ["true"], job="j")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compiled(tmp_path_factory.mktemp("mpi"))
    except CannotRun as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a running fabric."""
    if (reason := namespaces_allowed()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("fabric")
    command = [sys.executable, "-m", "fabrictime", "fabric", "up", "--hosts", "4", "--leaves", "2"]
    command += ["--spines", "2", "--for", "120s", "--dir", str(folder)]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    client, deadline_s = ControlClient(socket_path(folder)), time.monotonic() + START_S
    try:
        while True:
            try:
                client.ask("show")
                break
            except NoFabric:
                assert owner.poll() is None
                assert time.monotonic() < deadline_s, f"no fabric within {START_S} s"
                time.sleep(0.1)
        yield folder
    finally:
        owner.terminate()
        owner.wait(30)


def run(fabric: Path, hosts: str, *program: str | Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "fabrictime",
        "fabric",
        "mpi",
        "--hosts",
        hosts,
        "--dir",
        str(fabric),
        "--",
    ]
    return subprocess.run(
        [*command, *map(str, program)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.fabric
def test_a_job_sends_its_data_over_the_fabric(fabric: Path, program: Path) -> None:
    def received() -> dict[str, int]:
        links = ControlClient(socket_path(fabric)).ask("truth")["links"]
        return {name: link["received_bytes"] for name, link in links.items()}

    before = received()
    done = run(fabric, "h1,h2,h3,h4", program, "allreduce", "100000", "1", "10")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10
    for host in ("h1", "h2", "h3", "h4"):
        [link] = [name for name in before if name.startswith(f"{host}:")]
        assert received()[link] - before[link] > 1_000_000


@pytest.mark.fabric
def test_several_ranks_share_a_host(fabric: Path, program: Path) -> None:
    done = run(fabric, "h1,h1,h3,h3", program, "allreduce", "1000", "1", "10")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10


@pytest.mark.fabric
def test_exit_code_and_environment_are_the_programs(fabric: Path) -> None:
    done = run(fabric, "h1,h3", "sh", "-c", "echo $FABRICTIME_HOST $FABRICTIME_COLLECTIVES; exit 7")
    assert done.returncode == 7
    folder = (fabric / "run").resolve()
    assert {f"h1 {folder}/collectives-h1.sock", f"h3 {folder}/collectives-h3.sock"} & set(
        done.stdout.splitlines()
    )
