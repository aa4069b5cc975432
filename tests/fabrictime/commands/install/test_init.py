"""`fabrictime init` as an operator runs it, on this host and in a namespace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabrictime.runtime.config import load
from fabrictime.runtime.fleet import nics_here
from tests.producers.audit.host.namespaces import named_namespaces

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def netns():
    from pyroute2 import NetNS

    name = f"ft-init-cmd-{os.getpid()}"
    with named_namespaces(name), NetNS(name) as ip:
        ip.link("add", ifname="ft0", kind="veth", peer={"ifname": "ft1"})
        index = ip.link_lookup(ifname="ft0")[0]
        ip.addr("add", index=index, address="10.7.0.1", prefixlen=24)
        ip.link("set", index=index, state="up")
        yield f"/run/netns/{name}"


def init(folder, netns, *arguments, stdin=b""):
    options = ("--log", "kafka:9092", "--folder", str(folder / "etc"), "--data", str(folder / "data"))
    return subprocess.run(
        [sys.executable, "-m", "fabrictime", "init", *options, "--netns", netns, "--host", "n1", *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_dry_run_writes_nothing_and_hides_no_file_but_the_key(tmp_path, netns):
    done = init(tmp_path, netns, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["written"]
    assert list(tmp_path.iterdir()) == []
    texts = {Path(file["path"]).name: file["text"] for file in answer["files"]}
    assert texts["probe.key"] is None
    assert 'address = "10.7.0.1"' in texts["fleet.toml"]


def test_a_host_joins_the_fleet_with_the_first_ones_key(tmp_path, netns):
    first, second = tmp_path / "first", tmp_path / "second"
    assert init(first, netns, "--write").returncode == 0
    key = (first / "etc/probe.key").read_bytes()
    joined = init(second, netns, "--join", "-", "--write", stdin=key)
    assert joined.returncode == 0, joined.stderr
    assert (second / "etc/probe.key").read_bytes() == key
    assert key not in joined.stdout + joined.stderr
    settings = load(second / "etc/fabrictime.toml")
    (nic,) = nics_here(settings.replaced({"up": {"host_name": "n1"}}))
    assert (nic.device, nic.netns) == ("ft0", netns)


def test_a_conflict_is_one_line_and_exit_code_1(tmp_path, netns):
    assert init(tmp_path, netns, "--write").returncode == 0
    refused = init(tmp_path, netns, "--rack", "r9", "--write")
    assert refused.returncode == 1
    (line,) = refused.stderr.decode().splitlines()
    assert line.endswith("fleet.toml: it has other entries of n1: ft0; --force replaces it")
    assert refused.stdout.endswith(b"nothing was written, because a file holds other values\n")
    assert init(tmp_path, netns, "--rack", "r9", "--write", "--force").returncode == 0
    assert 'rack = "r9"' in (tmp_path / "etc/fleet.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--device", "eth9"), "fabrictime: device eth9: no such interface, this host has ft0, ft1"),
        (("--join", "/nonexistent"), "fabrictime: key_file /nonexistent: No such file or directory"),
        (("--user", "nobody-there", "--write"), "fabrictime: user nobody-there: no such user"),
        (("--log", "kafka"), "fabrictime: --log kafka: expected host:port"),
        (("--host", "a/b"), "fabrictime: host 'a/b': String should match pattern"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, netns, arguments, line):
    done = init(tmp_path, netns, *arguments)
    assert done.returncode == 2
    (printed,) = done.stderr.decode().splitlines()
    assert printed.startswith(line)
    assert not (tmp_path / "etc").exists()
