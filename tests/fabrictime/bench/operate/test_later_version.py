"""The later version of the code, which the bench of mixed versions runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fabrictime.bench.operate import _later_version
from fabrictime.bench.operate._later_version import RECORDS, LaterSchemas, Versions
from schemas import codec

PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
from schemas import codec
print(*(codec.fingerprint_of(name).hex() for name in sys.argv[2:]))
"""
NATIVE = "ProbeBatch"


def fingerprints(code: Path) -> list[str]:
    """Return what the code in a folder writes before each record."""
    command = [sys.executable, "-I", "-c", PRINT, str(code), *RECORDS, NATIVE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_an_upgrade_runs_other_schemas_and_a_rollback_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_later_version, "PACKAGES", ("schemas",))
    ours = [codec.fingerprint_of(name).hex() for name in (*RECORDS, NATIVE)]
    versions = Versions(tmp_path)
    assert fingerprints(versions.current) == ours
    versions.upgrade()
    *changed, native = fingerprints(versions.current)
    assert [LaterSchemas().schema_of(bytes.fromhex(one))["name"] for one in changed] == list(RECORDS)
    assert len({*changed, *ours}) == 2 * len(RECORDS) + 1
    assert native == ours[-1]
    versions.roll_back()
    assert fingerprints(versions.current) == ours
