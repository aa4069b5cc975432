"""Modules: outputs of `mlxlink -m` and `ethtool -m` in the forms of public sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import MLXLINK_MODULE
from producers.audit.backend.ethernet import module_report
from producers.audit.backend.modules import ethtool_readings, mlxlink_readings
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus

QSFP = """
\tIdentifier                                : 0x11 (QSFP28)
\tVendor name                               : Mellanox
\tVendor SN                                 : MT1652FT00065
\tModule temperature                        : 47.11 degrees C / 116.79 degrees F
\tModule voltage                            : 3.2531 V
\tAlarm/warning flags implemented           : Yes
\tLaser tx bias current (Channel 1)         : 6.600 mA
\tLaser tx bias current (Channel 2)         : 0.000 mA
\tTransmit avg optical power (Channel 1)    : 0.9077 mW / -0.42 dBm
\tTransmit avg optical power (Channel 2)    : 0.0000 mW / -inf dBm
\tRcvr signal avg optical power(Channel 1)  : 0.9522 mW / -0.21 dBm
\tRcvr signal avg optical power(Channel 2)  : 0.0000 mW / -inf dBm
\tLaser bias current high alarm   (Chan 1)  : Off
\tModule temperature high alarm             : Off
\tLaser bias current high alarm threshold   : 12.000 mA
\tLaser bias current low alarm threshold    : 2.000 mA
\tLaser output power high alarm threshold   : 3.4673 mW / 5.40 dBm
\tLaser output power low alarm threshold    : 0.0724 mW / -11.40 dBm
\tModule temperature high alarm threshold   : 80.00 degrees C / 176.00 degrees F
\tModule temperature low alarm threshold    : -10.00 degrees C / 14.00 degrees F
\tLaser rx power high alarm threshold       : 3.4673 mW / 5.40 dBm
\tLaser rx power low alarm threshold        : 0.0467 mW / -13.31 dBm
"""
"""Form of ethtool's qsfp.c: lanes without light have -inf."""
SFP = """
\tVendor SN                                 : AQ70P4U
\tLaser bias current                        : 7.934 mA
\tLaser output power                        : 0.5734 mW / -2.42 dBm
\tReceiver signal average optical power     : 0.2004 mW / -6.98 dBm
\tModule temperature                        : 30.14 degrees C / 86.25 degrees F
\tLaser bias current high alarm threshold   : 11.800 mA
\tLaser output power low alarm threshold    : 0.1000 mW / -10.00 dBm
\tModule temperature high alarm threshold   : 78.00 degrees C / 172.40 degrees F
\tLaser rx power low alarm threshold        : 0.0100 mW / -20.00 dBm
"""
"""Form of ethtool's sfpdiag.c."""


def margins(readings):
    return {reading.quantity.fact: pytest.approx(reading.margin, abs=1e-6) for reading in readings}


def test_the_worst_channel_of_a_quantity_counts():
    assert margins(mlxlink_readings(module_report(MLXLINK_MODULE))) == {
        "module_temperature_margin_celsius": 21.0,
        "module_bias_margin_ma": 6.58,
        "module_rx_power_margin_db": 12.25,
        "module_tx_power_margin_db": 9.938,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (QSFP, (32.89, 5.4, 13.1, 10.98)),
        (SFP, (47.86, 3.866, 13.02, 7.58)),
    ],
)
def test_ethtool_reads_modules_of_one_channel_and_of_several(text, expected):
    assert tuple(margins(ethtool_readings(module_report(text))).values()) == expected


@pytest.mark.parametrize("values", ["N/A", "0 [0..0]", "0,0,0,0 [0..0]"])
def test_a_cable_of_copper_has_no_readings(values):
    lines = [f"{line.partition(':')[0]}: {values}" for line in MLXLINK_MODULE.splitlines() if "[" in line]
    assert list(mlxlink_readings(module_report("\n".join(lines)))) == []


@given(st.text(max_size=200))
def test_odd_text_is_parsed_without_error(text):
    for value in (
        text,
        f"Temperature [C] : {text}",
        f"Module temperature : {text}",
        QSFP.replace("-0.21", text),
    ):
        report = module_report(value)
        list(mlxlink_readings(report))
        list(ethtool_readings(report))


def facts(host):
    result = run_check(CHECKS["backend.modules"], host)
    return result.status, {
        (finding.subject, finding.fact.name): finding.fact.text for finding in result.findings if finding.fact
    }


def test_a_module_has_the_interface_of_its_port_as_subject():
    status, by_name = facts(HEALTHY)
    assert status is AuditStatus.PASSED
    assert by_name["eth0", "module_serial"] == "MT2330FT01234"
    assert by_name["eth0", "module_rx_power_margin_db"] == "12.25"


def test_without_mlxlink_ethtool_reads_the_modules():
    host = HEALTHY.copy()
    host.commands = {key: text for key, text in host.commands.items() if key[0] != "mlxlink"}
    assert facts(host)[0] is AuditStatus.SKIPPED
    host.commands["ethtool", "-m", "eth1"] = QSFP
    status, by_name = facts(host)
    assert status is AuditStatus.PASSED
    assert by_name["eth1", "module_serial"] == "MT1652FT00065"
    host.commands["ethtool", "-m", "eth1"] = QSFP.replace("-0.21", "-13.80")
    assert facts(host)[0] is AuditStatus.FAILED


def test_the_counters_of_a_port_and_of_nvlinks_are_facts():
    for check, expected in (
        ("backend.error-ratios", {"raw_bit_errors_total", "received_bits_total"}),
        ("gpu.nvlink-errors", {"gpu_serial", "nvlink_errors_total"}),
    ):
        result = run_check(CHECKS[check], HEALTHY)
        assert {finding.fact.name for finding in result.findings if finding.fact} >= expected
        assert "_total" not in result.text
