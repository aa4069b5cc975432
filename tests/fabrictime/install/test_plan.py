"""Files of a host's agent: settings, fleet file, probe key."""

import os
import stat

import pytest

from fabrictime.install.plan import Agent, Step, owner_of, plan, shared_key, write
from fabrictime.runtime.config import load
from fabrictime.runtime.fleet import file_nics
from producers.probe.keys import read_key
from producers.settings import NicSettings

OTHER_KEY = "ab" * 32


def agent(tmp_path, **changes):
    nics = changes.pop(
        "nics",
        (
            NicSettings(host="node1", device="eth0", address="10.0.0.1", rail=0, rdma_device="mlx5_0"),
            NicSettings(host="node1", device="eth1", address="10.0.1.1", rail=1, rack='r"4'),
        ),
    )
    values = {"log": "kafka:9092", "folder": tmp_path / "etc", "data": tmp_path / "data", **changes}
    return Agent(values["folder"], values["data"], values["log"], nics, **{
        key: value for key, value in values.items() if key in ("shared_key", "host_name")
    })  # fmt: skip


def steps(planned):
    return {file.path.name: file.step for file in planned}


def test_the_agent_reads_the_written_files(tmp_path):
    given = agent(tmp_path, host_name="node1")
    planned = plan(given)
    assert steps(planned) == dict.fromkeys(("fabrictime.toml", "fleet.toml", "probe.key"), Step.CREATE)
    write(planned)
    settings = load(given.folder / "fabrictime.toml")
    settings.check()
    assert settings.bootstrap == "kafka:9092"
    assert settings.up.host_name == "node1"
    assert settings.up.data_directory == tmp_path / "data"
    assert file_nics(given.folder / "fleet.toml", "node1") == list(given.nics)
    assert len(read_key(settings.probes.key_file)) == 32
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in given.folder.iterdir()}
    assert modes == {"fabrictime.toml": 0o644, "fleet.toml": 0o644, "probe.key": 0o600}


def test_a_second_plan_changes_nothing(tmp_path):
    given = agent(tmp_path)
    write(plan(given))
    before = {path: path.read_bytes() for path in given.folder.iterdir()}
    again = plan(given)
    assert set(steps(again).values()) == {Step.UNCHANGED}
    write(again)
    assert {path: path.read_bytes() for path in given.folder.iterdir()} == before


def test_other_values_are_a_conflict_that_only_force_resolves(tmp_path):
    given = agent(tmp_path)
    write(plan(given))
    before = {path: path.read_bytes() for path in given.folder.iterdir()}
    moved = agent(
        tmp_path,
        log="other:9092",
        shared_key=OTHER_KEY,
        nics=(NicSettings(host="node1", device="eth7", address="10.0.7.1"),),
    )
    planned = plan(moved)
    assert set(steps(planned).values()) == {Step.CONFLICT}
    assert {file.path.name: file.reason for file in planned} == {
        "fabrictime.toml": 'up.log_url is "kafka:9092", expected "other:9092"',
        "fleet.toml": "it has other entries of node1: eth0, eth1",
        "probe.key": "it holds another fleet's key",
    }
    write(planned)
    assert {path: path.read_bytes() for path in given.folder.iterdir()} == before
    write(plan(moved, force=True))
    assert load(given.folder / "fabrictime.toml").bootstrap == "other:9092"
    assert file_nics(given.folder / "fleet.toml", "node1") == list(moved.nics)
    assert read_key(given.folder / "probe.key").hex() == OTHER_KEY


def test_force_keeps_the_fleets_key_unless_another_is_given(tmp_path):
    given = agent(tmp_path)
    write(plan(given))
    key = (given.folder / "probe.key").read_bytes()
    write(plan(agent(tmp_path, log="other:9092"), force=True))
    assert (given.folder / "probe.key").read_bytes() == key


def test_entries_of_other_hosts_stay(tmp_path):
    given = agent(tmp_path)
    given.folder.mkdir()
    fleet = given.folder / "fleet.toml"
    fleet.write_text('# ours\n[[nics]]\nhost = "node2"\ndevice = "eth0"\naddress = "10.0.0.2"\n')
    planned = plan(given)
    assert steps(planned)["fleet.toml"] is Step.EXTEND
    write(planned)
    assert fleet.read_text().startswith("# ours\n")
    assert [nic.host for nic in file_nics(fleet)] == ["node2", "node1", "node1"]
    replaced = agent(tmp_path, nics=given.nics[:1])
    write(plan(replaced, force=True))
    assert [(nic.host, nic.device) for nic in file_nics(fleet)] == [("node2", "eth0"), ("node1", "eth0")]


def test_a_settings_file_of_comments_is_replaced_and_more_keys_are_kept(tmp_path):
    given = agent(tmp_path)
    given.folder.mkdir()
    settings = given.folder / "fabrictime.toml"
    settings.write_text("# run fabrictime init\n")
    write(plan(given))
    text = settings.read_text() + '[web]\nhost = "127.0.0.1"\n'
    settings.write_text(text)
    planned = plan(given)
    assert steps(planned)["fabrictime.toml"] is Step.UNCHANGED
    write(planned)
    assert settings.read_text() == text


@pytest.mark.parametrize(
    "text", [OTHER_KEY.encode(), b"\n" + OTHER_KEY.encode() + b"\n", bytes.fromhex(OTHER_KEY)]
)
def test_a_shared_key_comes_as_text_or_bytes(tmp_path, text):
    assert shared_key(tmp_path, text) == OTHER_KEY
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(text)
    assert shared_key(file) == OTHER_KEY


def test_a_key_that_others_can_read_or_of_another_length_is_refused(tmp_path):
    file = tmp_path / "key"
    file.write_text(OTHER_KEY)
    file.chmod(0o644)
    with pytest.raises(ValueError, match="mode 0644, expected 0600"):
        shared_key(file)
    with pytest.raises(ValueError, match=r"standard input: 5 bytes, expected 16 or 32"):
        shared_key("standard input", b"short")


def test_an_unwritable_folder_leaves_no_half_file(tmp_path):
    given = agent(tmp_path)
    given.folder.parent.joinpath("etc").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="etc"):
        write(plan(given))
    assert [path.name for path in tmp_path.iterdir()] == ["etc"]


def test_the_owner_must_exist():
    with pytest.raises(ValueError, match="user nobody-there: no such user on this host"):
        owner_of("nobody-there")
    assert owner_of(None) is None
    import pwd

    assert owner_of(pwd.getpwuid(os.geteuid()).pw_name) == (os.geteuid(), os.getegid())
