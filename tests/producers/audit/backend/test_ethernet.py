"""Reports of links: lane errors, mlxlink, LLDP."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import LLDP, MLXLINK
from producers.audit.backend.ethernet import lldp_neighbours, module_report, raw_errors
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus


def test_raw_errors_by_number() -> None:
    assert raw_errors({"rx_err_lane_0_phy": 4, "rx_err_lane_11_phy": 5, "rx_lane_phy": 6}) == {0: 4, 11: 5}


def test_the_report_of_mlxlink_has_no_colours() -> None:
    found = module_report(MLXLINK)
    assert found["State"] == "Active"
    assert found["FEC"] == "Standard_RS-FEC - (544,514)"
    assert found["Effective Physical BER"] == "15E-255"


def test_a_neighbour_has_a_switch_and_a_port() -> None:
    assert lldp_neighbours(LLDP)["eth0"] == "leaf0 swp7"
    assert lldp_neighbours("lldp.eth0.1.chassis.name=a\nlldp.eth0.1.port.descr=b=c") == {"eth0.1": "a b=c"}


@given(st.text(max_size=200))
def test_odd_text_is_parsed_without_error(text: str) -> None:
    for each in (text, f"a : {text}", f"lldp.{text}.chassis.name={text}"):
        module_report(each)
        lldp_neighbours(each)


@pytest.mark.parametrize(
    ("check", "name"),
    [("backend.duplex", "link_settings"), ("backend.error-ratios", "ethtool_statistics"),
     ("backend.discards", "ethtool_statistics")],
)  # fmt: skip
def test_a_driver_without_the_values_is_skipped(check: str, name: str) -> None:
    host = HEALTHY.copy()
    host.network[name] = {}
    assert run_check(CHECKS[check], host).status is AuditStatus.SKIPPED


def test_without_a_supplicant_there_is_no_authentication() -> None:
    host = HEALTHY.copy()
    del host.files["/run/wpa_supplicant/eth0"]
    assert run_check(CHECKS["backend.authentication"], host).status is AuditStatus.SKIPPED


def test_a_host_without_rdma_checks_the_nics_of_its_agent() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "infiniband" not in path}
    assert run_check(CHECKS["backend.flags"], host).status is AuditStatus.PASSED
    interfaces = host.network["interfaces"]
    host.network["interfaces"] = [
        replace(each, mtu=1500) if each.name == "eth1" else each for each in interfaces
    ]
    assert run_check(CHECKS["backend.mtu"], host).status is AuditStatus.FAILED
    host.nics = ()
    assert run_check(CHECKS["backend.flags"], host).status is AuditStatus.SKIPPED
