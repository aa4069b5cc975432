"""Checks of an agent's files."""

import os

import pytest

from fabrictime.install.file_checks import file_outcomes, fleet_of, settings_outcomes
from fabrictime.install.outcome import Level
from fabrictime.runtime.config import Config, load


@pytest.fixture
def config(tmp_path):
    key = tmp_path / "probe.key"
    key.touch(0o600)
    key.write_text("ab" * 32)
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[[nics]]\nhost = "n1"\ndevice = "eth0"\naddress = "10.0.0.1"\n')
    settings = tmp_path / "fabrictime.toml"
    settings.write_text(
        f'[up]\nfleet = "{fleet}"\nhost_name = "n1"\nlog_url = "127.0.0.1:9"\n'
        f'data_directory = "{tmp_path / "data"}"\n[probes]\nkey_file = "{key}"\n'
    )
    return load(settings)


def faults(outcomes):
    return [outcome for outcome in outcomes if outcome.level in (Level.FAILED, Level.WARNING)]


def test_files_of_a_fresh_agent_pass(config):
    assert faults(settings_outcomes(config)) == []
    nics, outcome = fleet_of(config)
    assert [nic.device for nic in nics] == ["eth0"]
    assert outcome.level is Level.OK
    assert faults(file_outcomes(config)) == []


def test_each_wrong_key_of_the_settings_is_an_outcome():
    config = Config({"probes": {"paths": 0, "peers": "x"}}, "settings")
    outcomes = list(settings_outcomes(config))
    assert [outcome.level for outcome in outcomes] == [Level.FAILED, Level.FAILED]
    assert {outcome.text.split(" = ")[0] for outcome in outcomes} == {
        "settings: probes.paths",
        "settings: probes.peers",
    }


def test_a_key_that_others_read_or_that_is_missing_has_a_fix(config):
    config.probes.key_file.chmod(0o644)
    (outcome,) = faults(file_outcomes(config))
    assert outcome.fix.startswith(f"chmod 600 {config.probes.key_file}")
    config.probes.key_file.unlink()
    (outcome,) = faults(file_outcomes(config))
    assert "--join KEYFILE" in outcome.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("key_owner", "fix"), [(10_001, None), (0, "chown 10001 ")])
def test_root_checks_that_the_user_of_the_agent_owns_its_key(config, tmp_path, key_owner, fix):
    (tmp_path / "data").mkdir(mode=0o700)
    os.chown(tmp_path / "data", 10_001, 10_001)
    os.chown(config.probes.key_file, key_owner, key_owner)
    outcomes = faults(file_outcomes(config))
    assert [outcome.fix for outcome in outcomes] == (
        [] if fix is None else [fix + str(config.probes.key_file)]
    )


def test_a_host_that_the_fleet_file_lacks_gets_the_command(config):
    nics, outcome = fleet_of(config.replaced({"up": {"host_name": "n9"}}))
    assert nics == []
    assert outcome.level is Level.FAILED
    assert outcome.fix == "fabrictime init --log 127.0.0.1:9 --write"


def test_an_open_data_directory_and_password_file_are_faults(config, tmp_path):
    (tmp_path / "data").mkdir(mode=0o755)
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o644)
    tables = {"kafka": {"tls": True, "sasl_mechanism": "PLAIN", "sasl_username": "u"}}
    tables["kafka"]["sasl_password_file"] = str(password)
    outcomes = faults(file_outcomes(config.replaced(tables)))
    assert {outcome.check: outcome.fix for outcome in outcomes} == {
        "kafka.sasl_password_file": f"chmod 600 {password}",
        "data directory": f"chmod 700 {tmp_path / 'data'}",
    }
    assert "secret" not in str(outcomes)
