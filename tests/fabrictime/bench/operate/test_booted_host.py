"""A root file system that cannot boot is refused, and leaves nothing. The bench of installation boots one."""

from pathlib import Path

import pytest

from fabrictime.bench.operate._booted_host import BootedHost, reason_without_groups
from fabrictime.bench.operate.install import reason_without_root


def test_a_root_without_systemd_is_refused_with_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    if (reason := reason_without_root() or reason_without_groups()) is not None:
        pytest.skip(reason)
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    host = BootedHost(root, "h1", "/proc/self/ns/net")
    with pytest.raises(RuntimeError, match=r"^h1: systemd ended with \d+: .*\bsys\b"), host:
        pass
    assert not host._cgroup.exists()
    assert str(root) not in Path("/proc/self/mounts").read_text()
