"""The command `fabrictime audit collectives`, with stand-ins of launcher and program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabrictime.commands.audit.command import audit_app
from tests.fabrictime.audit.test_collectives import stand_ins

RUNNER = CliRunner()


def run(folder: Path, slow: str, *options: str, hosts: str = "h1,h2,h3,h4"):
    launch = stand_ins(folder, slow)
    return RUNNER.invoke(
        audit_app,
        [
            *("collectives", "--hosts", hosts, "--launcher", launch.launcher, "--program", launch.program),
            *("--dir", str(folder / "data"), *options),
        ],
    )


def test_full_bandwidth(tmp_path: Path) -> None:
    done = run(tmp_path, "none", "--sku", "h100")
    assert done.exit_code == 0, done.output
    assert "no error found" in done.output


def test_a_slow_host_is_named_with_its_remedy(tmp_path: Path) -> None:
    done = run(tmp_path, "*,h3,*", "--sku", "h100", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout.strip().splitlines()[-1])
    text = json.dumps(found)
    assert "slow with two partners: below 440.0 GB/s" in text
    assert "Take the host out" in text


def test_an_unknown_type_is_measured_against_the_other_hosts(tmp_path: Path) -> None:
    assert run(tmp_path, "none", "--gpus", "8").exit_code == 0
    assert run(tmp_path, "*,h2,*", "--gpus", "8").exit_code == 1
    assert run(tmp_path, "none", "--gpus", "8", hosts="h1,h2").exit_code == 2


@pytest.mark.parametrize(
    ("options", "hosts", "error"),
    [
        (("--sku", "h100"), "h1,h1", "expected at least two hosts"),
        (("--sku", "z9"), "h1,h2", "--sku z9: expected a100"),
        ((), "h1,h2", "--gpus 0: expected the GPUs of a host"),
        (("--sku", "h100", "--operation", "sum"), "h1,h2", "--operation sum: expected all_reduce"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    tmp_path: Path, options: tuple[str, ...], hosts: str, error: str
) -> None:
    done = run(tmp_path, "none", *options, hosts=hosts)
    assert done.exit_code == 2
    assert error in done.output
