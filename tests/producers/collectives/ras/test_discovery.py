"""RAS services of this host: sockets, environments, addresses; each service is a real process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.ras.discovery import (
    Discovery,
    configured_port,
    listening_sockets,
    parse_sockets,
    port_of,
    target_of,
)
from tests.producers.collectives.ras.services import Services

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0
   1: 0100007F:6D7D 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0
   2: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 9 1
   3: nonsense
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with Services(tmp_path) as started:
        yield started


def test_listening_sockets_of_a_table() -> None:
    rows = list(parse_sockets(TABLE))
    assert [(row.inode, row.address, row.port, row.user) for row in rows] == [
        (4711, "127.0.0.1", 28028, 1000),
        (9, "::1", 22, 0),
    ]


@given(st.text(alphabet="0123456789ABCDEF: \n\t", max_size=400) | st.text(max_size=200))
def test_any_table_is_read(text: str) -> None:
    list(parse_sockets(text))


@pytest.mark.parametrize(
    ("value", "port"),
    [
        ("localhost:28028", 28028),
        ("[::1]:4000", 4000),
        ("10.0.0.1:70000", None),
        ("host", None),
        ("", None),
        ("host:0", None),
    ],
)
def test_the_port_of_an_address(value: str, port: int | None) -> None:
    assert port_of(value) == port


def test_a_socket_of_any_address_is_asked_at_the_loopback() -> None:
    assert (target_of("0.0.0.0"), target_of("::"), target_of("10.0.0.1")) == ("127.0.0.1", "::1", "10.0.0.1")


def test_the_hosts_settings_of_nccl_name_another_port(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    assert configured_port(file) == 28028
    file.write_text("NCCL_DEBUG=WARN\nNCCL_RAS_ADDR=localhost:4001\n")
    assert configured_port(file) == 4001


def test_this_process_is_among_the_listeners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inode = os.fstat(listener.fileno()).st_ino
        (own,) = [row for row in listening_sockets(None) if row.inode == inode]
        assert (own.address, own.port, own.user) == ("127.0.0.1", listener.getsockname()[1], os.geteuid())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_services_of_several_jobs_are_named_by_their_environments(services: Services, address: str) -> None:
    first = services.start(address, FABRICTIME_JOB="first")
    second = services.start(address, SLURM_JOB_ID="77", SLURM_STEP_ID="0")
    discovered = {one.port: one for one in Discovery().services()}
    job, other_job = discovered[first.port], discovered[second.port]
    assert job.environments[first.pid]["FABRICTIME_JOB"] == "first"
    assert other_job.environments[second.pid]["SLURM_JOB_ID"] == "77"
    assert (job.address, job.user, job.sockets) == (address, os.geteuid(), 1)


def test_a_listener_that_is_no_ras_service_is_never_asked(services: Services) -> None:
    services.start("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = {one.port for one in Discovery().services()}
        assert other.getsockname()[1] not in ports


def test_processes_of_one_job_share_an_address(services: Services) -> None:
    first = services.start("127.0.0.1")
    second = services.start("127.0.0.1", port=first.port)
    discovery = Discovery()
    (one,) = [service for service in discovery.services() if service.port == first.port]
    assert (one.sockets, set(one.environments)) == (2, {first.pid, second.pid})
    services.end(second)
    (one,) = [service for service in discovery.services() if service.port == first.port]
    assert set(one.environments) == {first.pid}


def test_a_process_that_starts_later_is_discovered(services: Services) -> None:
    discovery = Discovery()
    before = {one.port for one in discovery.services()}
    later = services.start("127.0.0.1")
    assert later.port in {one.port for one in discovery.services()} - before
