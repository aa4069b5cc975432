"""The file tree of a package: what lies where."""

import os

import pytest

from tools.release import tree
from tools.release.packages import AGENT, PACKAGES, SERVICES


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Return a function that makes a package's tree without Python packages, and returns its paths."""
    monkeypatch.setattr(tree, "_install", lambda *given: None)

    def made(package):
        root = tmp_path / package.name
        tree.make(root, package, tmp_path / "no.whl", "x86_64")
        return {
            str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()
        }

    return made


def test_the_agent_brings_the_command_and_the_guide(make):
    paths = make(AGENT)
    assert {"opt/fabrictime/bin/python", "opt/fabrictime/bin/fabrictime", "usr/bin/fabrictime"} <= paths
    assert {"usr/lib/systemd/system/fabrictime.service", "etc/fabrictime/fabrictime.toml"} <= paths
    assert "usr/share/doc/fabrictime/deploy.md" in paths


def test_the_services_bring_units_and_settings_and_no_file_of_the_agent(make):
    paths = make(SERVICES)
    assert paths == {
        "usr/lib/systemd/system/fabrictime-services.service",
        "usr/lib/systemd/system/fabrictime-service@.service",
        "etc/fabrictime/services.toml",
        "usr/share/doc/fabrictime-services/copyright",
    }
    assert not paths & make(AGENT)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_files_are_readable_by_all(make, tmp_path, package):
    for path in make(package):
        file = tmp_path / package.name / path
        assert os.path.islink(file) or file.stat().st_mode & 0o444 == 0o444
