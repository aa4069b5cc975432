"""The TOML file: each mistake is one line that names file, key and expected values."""

from pathlib import Path

import pytest

from fabrictime.runtime.config import ConfigError, load

ROOT = Path(__file__).resolve().parents[3]


def errors(tmp_path, text):
    path = tmp_path / "ft.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(path).check()
    return [line.removeprefix(f"{path}: ") for line in str(raised.value).splitlines()]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[log]\nport = 99999", "log.port = 99999: expected a whole number from 0 to 65535"),
        ("[log]\nprot = 1", "log.prot: unknown key, did you mean 'port'?"),
        ("[lgo]\nport = 1", "[lgo]: unknown table, did you mean 'log'?"),
        ("[probes]\npublish = 'cooked'", 'probes.publish = \'cooked\': expected "raw" or "reduced"'),
        ("[up]\nworkers = 'two'", "up.workers = 'two': expected a whole number from 0 to 64"),
        ("[up]\nworkers = nan", "up.workers = nan: expected a whole number from 0 to 64"),
        ("[probes]\nrate_pps = inf", "probes.rate_pps = inf: expected a number from 0.1 to 1000000"),
        ("[log]\nhost = '10.0.0.1'", "log.host = '10.0.0.1': '10.0.0.1': expected a loopback address"),
        ("[up]\nlog_url = 'http://a'", "up.log_url = 'http://a': expected text like "),
        ("up = 3", "up = 3: expected a table, [up]"),
        ("[streams.solve]\nholdover_s = -1", "streams.solve.holdover_s = -1: expected a number from 0 to"),
        ("[streams.solve]\nholdovr_s = 1", "streams.solve.holdovr_s: unknown key, did you mean 'holdover_s'"),
        ("[streams.history.retention]\nclocks_days = 0", "streams.history.retention.clocks_days = 0: exp"),
        ("port = ", "not a TOML file: Invalid value (at end of document)"),
    ],
)
def test_wrong_value_is_one_line(tmp_path, text, line):
    found = errors(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_every_wrong_key_of_every_table_gets_its_line(tmp_path):
    found = errors(tmp_path, "[log]\nport = -1\nhost = 'x'\n[web]\nrefresh_ms = 1\n")
    assert sorted(line.split(" ")[0] for line in found) == ["log.host", "log.port", "web.refresh_ms"]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")


def test_packages_share_values_that_the_file_has_once(tmp_path):
    path = tmp_path / "ft.toml"
    path.write_text(
        "[up]\ndata_directory = '/d'\n[log]\nport = 1234\n[history]\nport = 2345\n"
        "[streams]\nwindow_ms = 500\n[streams.history.retention]\ndelays_days = 9\n"
        "[probes]\nretention_hours = 3\n"
    )
    config = load(path)
    assert config.probes.kafka.bootstrap == config.streams.kafka.bootstrap == "127.0.0.1:1234"
    assert config.streams.history.url == str(config.web.history_url).rstrip("/") == "http://127.0.0.1:2345"
    assert config.streams.history.retention.delays_days == 9
    assert config.streams.history.password_file == config.history.write_token_file
    assert config.web.history_token_file == config.history.read_token_file
    assert config.probes.window_ms == 500
    assert config.log.retention_hours == {"probes.retention_hours": 3}
    assert config.log.directory == Path("/d/log")


@pytest.mark.parametrize(("timeout_ms", "simulated_ms"), [(2000, 300), (50, 50)])
def test_probes_may_wait_longer_than_simulated_ones(tmp_path, timeout_ms, simulated_ms):
    path = tmp_path / "ft.toml"
    path.write_text(f"[probes]\ntimeout_ms = {timeout_ms}")
    config = load(path)
    config.check()
    assert (config.probes.timeout_ms, config.sim.timeout_ms) == (timeout_ms, simulated_ms)


def test_a_wrong_timeout_is_one_line_of_the_table_that_sets_it(tmp_path):
    expected = "probes.timeout_ms = 'soon': expected a number from 1 to 10000"
    assert errors(tmp_path, "[probes]\ntimeout_ms = 'soon'")[0].startswith(expected)


def test_services_of_others_take_the_place_of_ours():
    config = load(
        None,
        {
            "up": {
                "log_url": "kafka://k1:9092,k2:9092",
                "history_url": "http://ch:8123/",
                "history_user": "ft",
                "history_password_file": "/secret",
            }
        },
    )
    assert config.streams.kafka.bootstrap == "k1:9092,k2:9092"
    assert (config.streams.history.url, config.streams.history.user) == ("http://ch:8123", "ft")
    assert config.web.history_token_file == Path("/secret")


def test_the_settings_of_child_processes_read_back_the_same(tmp_path):
    config = load(None, {"up": {"data_directory": str(tmp_path)}, "streams": {"window_ms": 250}})
    path = tmp_path / "settings.json"
    path.write_text(config.dump())
    again = load(path)
    for table_name in ("up", "log", "history", "probes", "streams", "web", "fabric", "kafka"):
        assert getattr(again, table_name) == getattr(config, table_name)


def test_one_table_secures_every_package(tmp_path):
    password = tmp_path / "password"
    password.write_text("s3cret")
    path = tmp_path / "fabrictime.toml"
    path.write_text(
        f"""
        [up]
        log_url = "kafka:9093"
        [kafka]
        tls = true
        sasl_mechanism = "SCRAM-SHA-512"
        sasl_username = "fabrictime"
        sasl_password_file = "{password}"
        [actuators.kafka]
        sasl_username = "actuator"
        """
    )
    config = load(path)
    config.check()
    for name in ("probes", "rdma_probes", "flows", "collectives", "audit", "streams", "web", "sim"):
        assert getattr(config, name).kafka == config.kafka
    assert config.kafka.bootstrap == "kafka:9093"
    assert config.actuators.kafka == config.kafka.model_copy(update={"sasl_username": "actuator"})
    (tmp_path / "settings.json").write_text(config.dump())
    again = load(tmp_path / "settings.json")
    assert (again.kafka, again.actuators) == (config.kafka, config.actuators)
    assert "s3cret" not in config.dump()


def test_the_environment_sets_the_cluster(monkeypatch, tmp_path):
    path = tmp_path / "fabrictime.toml"
    path.write_text('[kafka]\ntls = false\n[up]\nlog_url = "a:1"')
    monkeypatch.setenv("FABRICTIME_KAFKA_BOOTSTRAP", "b:2")
    monkeypatch.setenv("FABRICTIME_KAFKA_TLS", "true")
    config = load(path)
    assert (config.streams.kafka.bootstrap, config.streams.kafka.tls) == ("b:2", True)
    assert load(path, {"up": {"log_url": "c:3"}}).kafka.bootstrap == "c:3"
    monkeypatch.setenv("FABRICTIME_KAFKA_TSL", "true")
    with pytest.raises(ConfigError, match=r"FABRICTIME_KAFKA_TSL: unknown key of .kafka., did you mean"):
        load(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tls = true", r"\[kafka\]: SSL expects up.log_url as well"),
        ('tls_ca_file = "/ca"', r"\[kafka\]: tls_ca_file: expected tls = true as well"),
        ('schema_registry_url = "http://u:s3cret@h"', "kafka.schema_registry_url = 'http://…@h'"),
        (
            '[up]\nlog_url = "a:1"\n[kafka]\ntls = true\ntls_ca_file = "/none"',
            "TLS files /none: No such file",
        ),
    ],
)
def test_wrong_security_is_one_line_without_secrets(tmp_path, text, error):
    path = tmp_path / "fabrictime.toml"
    path.write_text(text if "[kafka]" in text else f"[kafka]\n{text}")
    with pytest.raises(ConfigError, match=error) as found:
        load(path).check()
    assert "s3cret" not in str(found.value)
    assert len(str(found.value).splitlines()) == 1


def test_kafka_and_the_embedded_log_are_reached_by_ipv6_in_every_table(tmp_path):
    path = tmp_path / "fabrictime.toml"
    path.write_text('[up]\nlog_url = "[fd00::1]:9092,[fd00::2]:9092"\n')
    config = load(path)
    config.check()
    assert {config.kafka.bootstrap, config.probes.kafka.bootstrap, config.web.kafka.bootstrap} == {
        "[fd00::1]:9092,[fd00::2]:9092"
    }
    path.write_text('[log]\nhost = "::1"\n[history]\nhost = "::1"\n')
    config = load(path)
    config.check()
    assert config.streams.kafka.bootstrap == "[::1]:19092"
    assert config.history_url.startswith("http://[::1]:")


def test_roces_port_is_refused_for_udp_probes(tmp_path):
    path = tmp_path / "fabrictime.toml"
    for text in ("udp_port = 4791", "first_path_port = 4780"):
        path.write_text(f"[probes]\n{text}\n")
        with pytest.raises(ConfigError, match="4791, whose packets RDMA NICs keep"):
            load(path).check()
