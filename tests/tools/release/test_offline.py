"""Files for a site without internet."""

import hashlib
import subprocess
import sys

import pytest

from tools.release import offline


def test_the_images_of_the_guide_are_named_with_their_version():
    names = offline.images()
    assert any(name.startswith("apache/kafka:") for name in names)
    assert any(name.startswith("python:") for name in names)
    assert all(":" in name and not name.endswith(":latest") for name in names)


@pytest.mark.slow("fetches the wheels of the agent")
@pytest.mark.timeout(900)
def test_the_agent_installs_without_an_index(tmp_path):
    from tools.release.__main__ import DIST

    wheels = sorted(DIST.glob("fabrictime-*x86_64.whl"))
    if not wheels:
        pytest.skip("no wheel in dist/: make dist ARGS=wheels builds it")
    folder = offline.collect(wheels[-1], "x86_64", tmp_path / "offline")
    for line in (folder / offline.SUMS).read_text().splitlines():
        checksum, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder)]
    subprocess.run([*pip, "--target", str(target), "fabrictime"], check=True)
    assert (target / "fabrictime").is_dir()
