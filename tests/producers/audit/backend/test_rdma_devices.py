"""Texts of mlxconfig and of the self-test, and cards that are away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.faults_network import both, gone, prints
from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import DEVICES, MLXCONFIG
from producers.audit.backend.rdma_devices import outcomes, settings
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus

CARD = "/sys/bus/pci/devices/0000:17:00.0"


def test_settings_are_numbers() -> None:
    assert settings(MLXCONFIG) == {
        "ADVANCED_PCI_SETTINGS": 1,
        "MAX_ACC_OUT_READ": 44,
        "NUM_OF_VFS": 0,
        "LINK_TYPE_P1": 2,
    }
    assert settings("* MAX_ACC_OUT_READ   128   \n A_B Array[0..3]\n") == {"MAX_ACC_OUT_READ": 128}


def test_outcomes_of_the_self_test() -> None:
    assert outcomes(
        "PCI Device Check ....... PASS\nState ....... UP 4X\nFirmware ... FAIL\n REASON: old\n"
    ) == {
        "PCI Device Check": "PASS",
        "Firmware": "FAIL",
    }


@given(st.text(max_size=200))
def test_odd_text_is_parsed_without_error(text: str) -> None:
    settings(text)
    outcomes(text)


def test_a_card_of_a_virtual_machine_passes() -> None:
    host = HEALTHY.copy()
    gone(f"{CARD}/infiniband/mlx5_0/node_type")(host)
    host.links[f"{CARD}/driver"] = "/sys/bus/pci/drivers/vfio-pci"
    result = run_check(CHECKS["backend.vanished"], host)
    assert result.status is AuditStatus.PASSED
    assert "given to a virtual machine" in [each.text for each in result.findings]


def test_a_card_with_hidden_settings_uses_the_firmwares_own() -> None:
    host = HEALTHY.copy()
    both(
        *(
            prints(("mlxconfig", "-d", address, "query"), "   ADVANCED_PCI_SETTINGS    False(0)\n")
            for address in DEVICES.values()
        )
    )(host)
    assert run_check(CHECKS["backend.firmware-settings"], host).status is AuditStatus.PASSED


def test_cards_of_another_maker_have_no_settings() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if not path.endswith("/hca_type")}
    for check in ("like-cards", "firmware-settings", "round-trip-control", "link-quality", "fec"):
        assert run_check(CHECKS[f"backend.{check}"], host).status is AuditStatus.SKIPPED
