"""The programs of the foreign bench: they build, show their iterations, and make the faults of their page."""

from __future__ import annotations

import os
import subprocess

import pytest

from fabrictime.bench.field._mpi_kinds import OPEN_MPI
from fabrictime.bench.foreign import _hosts, _programs
from fabrictime.bench.foreign._page import ALL, Page
from fabrictime.bench.foreign._truth import MESSAGES
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not OPEN_MPI.is_installed, reason=f"no Open MPI ({OPEN_MPI.packages})")
JOB = f"foreign-test-{os.getpid()}"
"""Another process that runs these tests has jobs of its own."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def start(built, tmp_path):
    """Start a program with three ranks; it ends with the test."""
    children, pages = [], []

    def started(name):
        page = Page(tmp_path / "page", 3)
        command = _programs.own(built, page.path, name, 400, 1000)
        children.append(
            subprocess.Popen(
                OPEN_MPI.command(3, {"FABRICTIME_JOB": JOB}, *command), stderr=subprocess.DEVNULL
            )
        )
        pages.append(page)
        wait_until(lambda: min(page.iterations()) > 2)
        return page

    yield started
    for child in children:
        child.terminate()
        child.wait(20)
    for page in pages:
        page.close()


@pytest.mark.parametrize("name", MESSAGES)
def test_each_program_runs_with_three_times_its_bytes_and_again_without(start, name):
    page = start(name)
    page.begin("BYTES", ALL, 300)
    begin_ns = page.begun_ns(20)
    page.end()
    assert page.ended_ns(20) > begin_ns
    at = min(page.iterations())
    wait_until(lambda: min(page.iterations()) > at + 20)


@pytest.mark.parametrize("fault", ["STUCK", "FIFO"])
def test_a_stuck_rank_stops_the_others(start, fault):
    page = start("reduce")
    page.begin(fault, 1, 0)
    page.begun_ns(20)
    wait_until(lambda: len(set(page.iterations())) == 1)
    stuck = page.iterations()
    page.begin("SLEEP", 0, 1000, slot=1)
    assert page.iterations() == stuck


def test_the_ranks_of_a_job_are_found_by_their_environment(start):
    page = start("halo")
    assert _hosts.ranks_of(JOB) == dict(enumerate(page.pids()))
    assert os.getpid() not in _hosts.ranks_of(JOB).values()
