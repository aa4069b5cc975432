"""Files with secrets: only their owner can read them; root's may also be readable to our group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.secret_file import SecretFileError, read_secret, stamp, write_secret


def test_a_new_file_is_readable_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    assert stamp(path) is None
    write_secret(path, b"text")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret(path, "key", "a key") == b"text"
    with pytest.raises(FileExistsError):
        write_secret(path, b"other")
    before = stamp(path)
    path.write_bytes(b"longer text")
    assert stamp(path) != before


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"hidden")
    path.chmod(mode)
    with pytest.raises(SecretFileError, match=f"key {path}: mode {mode:04o}, expected 0600") as caught:
        read_secret(path, "key", "a key")
    assert "hidden" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_reads_the_key_of_the_user_of_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path, b"text")
    os.chown(path, 10_001, 10_001)
    assert read_secret(path, "key", "a key") == b"text"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o400, False), (0o460, False), (0o444, False)])
def test_a_secret_that_kubernetes_mounts_is_read(tmp_path: Path, mode: int, is_read: bool) -> None:
    """It belongs to root and to the group of the pod."""
    for part in (tmp_path, *tmp_path.parents[:-2]):
        part.chmod(part.stat().st_mode | 0o011)
    path = tmp_path / "secret"
    path.write_bytes(b"text")
    os.chown(path, 0, 10_001)
    path.chmod(mode)
    code = (
        "import os, sys; from pathlib import Path; from schemas.secret_file import read_secret\n"
        "os.setgroups([]); os.setgid(10_001); os.setuid(10_002)\n"
        "print(read_secret(Path(sys.argv[1]), 'key', 'a key'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout == "b'text'\n") is is_read, done.stderr
