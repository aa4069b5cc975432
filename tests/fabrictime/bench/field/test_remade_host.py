"""The bench's cgroup holds processes, and can be removed and made again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.field._remade_host import Cgroup


def test_a_cgroup_is_made_again_under_a_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            try:
                cgroup = Cgroup()
                cgroup.make(1.5)
            except CannotRun as reason:
                pytest.skip(str(reason))
            for _ in range(2):
                cgroup.enter([process.pid])
                place = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="ascii")
                assert place.count(f"/{cgroup.path.name}\n") == 1
                cgroup.remove([process.pid])
                assert not cgroup.path.exists()
                cgroup.make(1)
            cgroup.remove([])
        finally:
            process.kill()
