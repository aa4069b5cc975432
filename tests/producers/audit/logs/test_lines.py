"""The grammar of lines of the kernel log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.logs.lines import parse_line, read_lines, slot_of

DRIVERS = st.from_regex(r"[a-z][a-z0-9_]{1,12}", fullmatch=True)
ADDRESSES = st.from_regex(r"[0-9a-f]{4}(0000)?:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True)
NAMES = st.one_of(st.just(""), st.from_regex(r"[a-z][a-z0-9._-]{0,14}", fullmatch=True))
TEXTS = st.from_regex(r"[A-Za-z(][ -~]{0,60}", fullmatch=True)


@given(DRIVERS, ADDRESSES, NAMES, TEXTS, st.floats(0, 1e8))
def test_every_line_of_a_driver_is_split_at_its_colon_and_blank(
    driver: str, device: str, name: str, text: str, at_s: float
) -> None:
    prefix = f"{driver} {device} {name}" if name else f"{driver} {device}"
    line = parse_line(f"[{at_s:12.6f}] {prefix}: {text}")
    assert (line.driver, line.device, line.name, line.text) == (driver, device, name, text.rstrip())
    assert line.subject == (name or device)
    assert line.at_s == pytest.approx(at_s, abs=1e-6)


@given(ADDRESSES, ADDRESSES, TEXTS)
def test_two_cards_are_two_subjects(first: str, second: str, text: str) -> None:
    subjects = {parse_line(f"mlx5_core {device}: {text}").subject for device in (first, second)}
    assert subjects == {first, second}


@pytest.mark.parametrize(
    ("line", "driver", "subject", "text"),
    [
        (
            "mlx5_core 0000:17:00.0 ens1np0: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms",
            "mlx5_core",
            "ens1np0",
            "NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms",
        ),
        ("bnxt_en 0000:a8:00.0 eth1 (unregistering): stopped", "bnxt_en", "eth1", "stopped"),
        ("ice 0000:a8:00.0 (unnamed net_device) (uninitialized): no", "ice", "0000:a8:00.0", "no"),
        ("nvme 10000:e1:00.0: enabling device", "nvme", "10000:e1:00.0", "enabling device"),
        ("infiniband irdma0: CQP opcode 0x5 timed out", "infiniband", "irdma0", "CQP opcode 0x5 timed out"),
        ("usb 1-1.2:1.0: reset", "usb", "1-1.2:1.0", "reset"),
        ("eth0: Link up", "eth0", "eth0", "Link up"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring a", "amdgpu", "amdgpu", "*ERROR* ring a"),
        ("NVRM: Xid (PCI:0000:19:00): 79, gone", "NVRM", "0000:19:00", "Xid 79, gone"),
        ("NVRM: Xid (0000:03:00): 14, Channel 1", "NVRM", "0000:03:00", "Xid 14, Channel 1"),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen", "NVRM", "0000:18:00.0", "GPU has fallen"),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32",
            "nvidia-nvswitch3",
            "0000:05:00.0",
            "SXid 12028, Non-fatal, Link 32",
        ),
        ("a line without a prefix", "", "", "a line without a prefix"),
    ],
)
def test_lines_of_each_form(line: str, driver: str, subject: str, text: str) -> None:
    for stamp in ("", "[    1.500000] ", "[    1.500000] [   T12] ", "[    1.500000][  C3] "):
        parsed = parse_line(stamp + line)
        assert (parsed.driver, parsed.subject, parsed.text) == (driver, subject, text)
        assert parsed.at_s == (1.5 if stamp else 0.0)


def test_functions_of_a_card_share_a_slot() -> None:
    assert slot_of("0000:17:00.1") == slot_of("0000:17:00") == "0000:17:00"
    assert slot_of("eth0") == "eth0"


@given(st.text(max_size=200))
def test_any_text_is_a_log(log: str) -> None:
    assert len(list(read_lines(log))) <= len(log.splitlines())
