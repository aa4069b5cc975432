"""History as a data source: addresses that are taken, and the provisioned file."""

import pytest
import yaml

from grafana import dashboard_files, datasource

ROOT = dashboard_files.FOLDER.parent


@pytest.mark.parametrize(
    ("url", "port", "secure"),
    [("http://h", 8123, False), ("https://h", 8443, True), ("https://[::1]:9000", 9000, True)],
)
def test_a_missing_port_is_clickhouses_own(url, port, secure):
    made = datasource.data_source(url, "reader", None)
    assert (made["jsonData"]["port"], made["jsonData"]["secure"]) == (port, secure)
    assert made["secureJsonData"] == {}, "without a password the stored one stays"


@pytest.mark.parametrize(
    "url", ["", "h:8123", "tcp://h", "http://", "http://h:x", "http://user@h", "http://h:99999"]
)
def test_another_url_is_refused(url):
    with pytest.raises(ValueError, match=r"expected http://host:port"):
        datasource.data_source(url, "reader", None)


def test_provisioning_equals_the_result_of_push():
    [source] = yaml.safe_load((ROOT / "provisioning/datasources/fabrictime.yaml").read_text())["datasources"]
    pushed = datasource.data_source("http://clickhouse:8123", "reader", "x")
    assert {key: source[key] for key in ("uid", "name", "type", "access")} == {
        key: pushed[key] for key in ("uid", "name", "type", "access")
    }
    variable = {"host", "port"}
    assert set(source["jsonData"]) == set(pushed["jsonData"])
    for key in set(pushed["jsonData"]) - variable:
        assert source["jsonData"][key] == pushed["jsonData"][key], key
    [provider] = yaml.safe_load((ROOT / "provisioning/dashboards/fabrictime.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/fabrictime/dashboards"
    assert provider["allowUiUpdates"] is False
