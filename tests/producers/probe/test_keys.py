"""Settings and key files: what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from producers.probe.keys import read_key
from producers.settings import NicSettings, ProbeSettings
from schemas.secret_file import SecretFileError


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rate_pps": 0}, "rate_pps"),
        ({"udp_port": 9321}, "expected outside the paths' candidates, 9320 to 9383"),
        ({"first_path_port": 65472, "paths": 64, "udp_port": 1}, ""),
        ({"kafka": {"bootstrap": "nowhere"}}, "kafka.bootstrap"),
        ({"publish": "both"}, "publish"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], text: str) -> None:
    good = {"key_file": "/dev/null"}
    ProbeSettings(**good)
    if text:
        with pytest.raises(ValidationError, match=text):
            ProbeSettings(**(good | change))
    else:
        ProbeSettings(**(good | change))


def test_a_replayed_request_is_answered_only_for_minutes() -> None:
    assert ProbeSettings(key_file="/dev/null").max_age_s <= 300


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "h1", "10.0.0.0/8"])
def test_a_nic_needs_an_address_of_its_own(address: str) -> None:
    with pytest.raises(ValidationError, match="address"):
        NicSettings(host="h1", device="eth0", address=address)


@pytest.mark.parametrize("data", [bytes(range(16)), bytes(range(32)), b"0123456789abcdef0123456789abcdef\n"])
def test_a_key_is_raw_bytes_or_hexadecimal(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o600)
    expected = bytes.fromhex(data.decode().strip()) if data.endswith(b"\n") else data
    assert read_key(path) == expected


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(16))
    path.chmod(mode)
    with pytest.raises(SecretFileError, match=rf"key_file .*: mode {mode:04o}, expected 0600") as caught:
        read_key(path)
    assert "\n" not in str(caught.value)


def test_a_key_of_the_wrong_size_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(SecretFileError, match="No such file"):
        read_key(path)
    path.write_bytes(b"secret")
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match="6 bytes, expected 16 or 32"):
        read_key(path)
    with pytest.raises(SecretFileError, match="not a regular file"):
        read_key(tmp_path)
