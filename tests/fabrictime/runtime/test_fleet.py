"""Children of `up`: fleets, start order, and the fallback if namespaces are denied."""

import contextlib
import json
import time

import pytest

from fabrictime.commands.up import fleet as fleet_of_up
from fabrictime.commands.up import services
from fabrictime.commands.up.run import Run
from fabrictime.runtime import fleet
from fabrictime.runtime.config import ConfigError, load
from fabrictime.runtime.supervisor import Step
from fabrictime.testbed.processes import userns
from producers.settings import ClockSettings


@pytest.fixture
def run(tmp_path):
    """Make a Run on a fresh directory with the given [up] settings."""

    def make(**given):
        directory = tmp_path / "data"
        for part in ("run", "secrets"):
            (directory / part).mkdir(parents=True)
        config = load(None, {"up": {"data_directory": str(directory), **given}})
        return Run(config, directory, None, False)

    return make


def test_denied_namespaces_are_reported_and_loopback_is_probed(run, monkeypatch, capsys):
    def denied():
        raise userns.NamespacesDenied("namespaces are refused here")

    monkeypatch.setattr(userns, "enter", denied)
    made = run(fleet="fabric", loopback_nics=3)
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    assert made.fleet == "loopback"
    assert [nic.address for nic in made.nics] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    message = capsys.readouterr().err
    assert (
        message == "no fabric here: namespaces are refused here; probing between loopback addresses instead\n"
    )


def test_every_nic_has_a_prober_and_every_service_waits_for_its_prerequisites(run):
    made = run(fleet="loopback", loopback_nics=2, workers=2)
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    fleet_of_up.make_secrets(made)
    needs = {node.name: set(node.needs) for node in services.children(made)}
    assert needs == {
        "log": set(),
        "history": set(),
        "worker-1": {"log"},
        "worker-2": {"log"},
        "links": {"log"},
        "policy": {"log"},
        "sink": {"log", "history"},
        "prober lo1/lo": {"log"},
        "prober lo2/lo": {"log"},
        "flows": {"log"},
        "collectives": {"log"},
        "auditor": {"log"},
        "clock": {"log"},
        "web": {"history"},
    }
    key = made.config.probes.key_file
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(key.read_text())) == 32
    again = load(made.directory / "run" / "settings.json")
    assert again.probes == made.config.probes
    assert fleet.nic_of(again, "lo2/lo") == made.nics[1]
    assert fleet.nics_here(again) == made.nics


def test_a_simulated_fleet_begins_once_everybody_listens(run):
    made = run(fleet="sim:8", workers=1)
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    fleet_of_up.make_secrets(made)
    needs = {node.name: set(node.needs) for node in services.children(made)}
    assert needs["sim"] == {"log", "history", "worker-1", "links", "policy", "sink"}
    assert "flows" not in needs, "one service stands for all agents"
    assert made.config.streams.default_shard == "sim", (
        "one name for the fleet's shard, from the first window on"
    )


def test_services_of_others_are_used_and_not_started(run):
    made = run(fleet="none", log_url="k:9092", history_url="http://ch:8123", web=False, workers=1)
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    fleet_of_up.make_secrets(made)
    nodes = {node.name: node for node in services.children(made)}
    assert set(nodes) == {"log", "worker-1", "links", "policy", "sink"}
    assert isinstance(nodes["log"], Step)
    assert made.addresses() == {"log": "k:9092", "history": "http://ch:8123"}


def test_a_host_without_workers_judges_no_links(run):
    made = run(fleet="none", log_url="k:9092", history_url="http://ch:8123", web=False, workers=0)
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    fleet_of_up.make_secrets(made)
    assert {node.name for node in services.children(made)} == {"log"}


def test_fleet_file_gives_this_hosts_nics(run, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[[nics]]\nhost = 'a'\ndevice = 'eth0'\naddress = '10.0.0.1'\nrail = 0\n"
        "[[nics]]\nhost = 'a'\ndevice = 'eth1'\naddress = '10.0.1.1'\nrail = 1\n"
        "[[nics]]\nhost = 'b'\ndevice = 'eth0'\naddress = '10.0.0.2'\n"
    )
    made = run(fleet=str(path), host_name="a")
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    assert [(nic.device, nic.rail) for nic in made.nics] == [("eth0", 0), ("eth1", 1)]
    with pytest.raises(ConfigError, match="no NIC of host 'c', it lists a, b"):
        fleet.file_nics(path, "c")


def test_a_nic_with_an_rdma_device_is_probed_over_it_or_the_reason_is_printed(run, tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[[nics]]\nhost = 'a'\ndevice = 'eth0'\naddress = '10.0.0.1'\nrdma_device = 'mlx5_none'\n"
        "[[nics]]\nhost = 'a'\ndevice = 'eth1'\naddress = '10.0.1.1'\n"
    )
    made = run(fleet=str(path), host_name="a")
    fleet_of_up.make_fleet(made, contextlib.ExitStack())
    names = {node.name for node in services.children(made)}
    assert {"prober a/eth0", "prober a/eth1"} <= names
    assert not [name for name in names if name.startswith("rdma-probe")]
    made.listed = True
    names = {node.name for node in services.children(made)}
    assert "agent a" in names
    assert not names & {"flows", "collectives", "auditor", "clock", "prober a/eth0"}, (
        "one process for all parts"
    )
    line = "a/eth0: no RDMA probes: mlx5_none: no such RDMA device\n"
    assert capsys.readouterr().err == 2 * line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected \\[\\[nics\\]\\]"),
        ("nics = 3", "expected \\[\\[nics\\]\\]"),
        ("hosts = 1\n[[nics]]\nhost = 'a'", "'hosts': unknown key"),
        (
            "[[nics]]\nhost = 'a'\ndevice = 'e'\naddress = '1.1.1.1'\nspeed = 1",
            "nics\\[1\\].speed = 1: unknown key",
        ),
        ("[[nics]]\nhost = 'a'\ndevice = 'e'\naddress = '1.1.1.1'\n" * 2, "a/e is listed twice"),
    ],
)
def test_wrong_fleet_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        fleet.file_nics(path)
    assert "\n" not in str(raised.value)


ROW = {"host": "h1", "device": "eth0", "address": "10.0.0.1"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW, {**ROW, "host": "h2"}], "h1/eth0 and h2/eth0 both have address 10.0.0.1"),
        (
            [ROW, {**ROW, "host": "h2", "address": "::ffff:10.0.0.1"}],
            "h1/eth0 and h2/eth0 both have address 10.0.0.1",
        ),
        ([{**ROW, "device": "eth0:1"}], "nics[1].device = 'eth0:1': expected 1 to 128 characters without"),
        ([{**ROW, "host": "rack:1"}], "nics[1].host = 'rack:1': expected 1 to 128 characters without"),
        (
            [{**ROW, "address": "fe80::1%eth1"}],
            "nics[1].address = 'fe80::1%eth1': scope eth1, expected the NIC's device, eth0",
        ),
        ([{**ROW, "address": "h1"}], "nics[1].address = 'h1': expected an IPv4 or IPv6 address"),
        ([{"host": "h1"}], "nics[1].device: missing"),
    ],
)
def test_impossible_values_are_refused_with_their_place(tmp_path, rows, message):
    path = tmp_path / "fleet.JSON"
    path.write_text(json.dumps({"nics": rows}))
    with pytest.raises(ConfigError) as refused:
        fleet.file_nics(path)
    assert str(refused.value).startswith(f"fleet {path}: {message}")


def test_addresses_are_read_in_any_spelling_and_reused_by_other_shards(tmp_path):
    path = tmp_path / "fleet.json"
    rows = [
        {**ROW, "address": "::ffff:10.0.0.1"},
        {**ROW, "host": "h2", "shard": "other"},
        {**ROW, "host": "h3", "address": "FD00:0::1"},
        {**ROW, "host": "h4", "address": "fe80::1%eth0"},
    ]
    path.write_text(json.dumps({"nics": rows}))
    assert [nic.address for nic in fleet.file_nics(path)] == ["10.0.0.1", "10.0.0.1", "fd00::1", "fe80::1"]


def test_a_fleet_of_100000_nics_loads_within_seconds(tmp_path):
    """In processor time, four times of a quiet machine's: before, duplicates alone took minutes."""
    rows = [
        {"host": f"h{n // 8}", "device": f"eth{n % 8}", "address": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"}
        for n in range(100_000)
    ]
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"nics": rows}))
    began_s = time.process_time()
    found = fleet.file_nics(path)
    assert len(found) == 100_000
    assert time.process_time() - began_s < 8


def test_test_clocks_are_given_by_name_and_keep_their_epoch():
    nics = fleet.with_clocks(fleet.loopback_nics(2), {"lo2/lo": ClockSettings(offset_ns=5)})
    assert nics[0].clock is None
    assert nics[1].clock.offset_ns == 5
    assert nics[1].clock.epoch_ns > 0
    with pytest.raises(ConfigError, match=r"up\.clocks\.x/y: no such NIC, expected one of lo1/lo, lo2/lo"):
        fleet.with_clocks(nics, {"x/y": ClockSettings()})


def test_fleet_survives_its_file(tmp_path):
    nics = fleet.with_clocks(fleet.loopback_nics(2), {"lo1/lo": ClockSettings(drift_ppb=7)})
    path = tmp_path / "fleet.json"
    fleet.write_nics(path, nics)
    assert fleet.file_nics(path) == nics
    assert json.loads(path.read_text())["nics"][0]["host"] == "lo1"
