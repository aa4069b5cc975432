"""The agent's Debian package: its control file and scripts; tests/test_release.py installs it."""

import subprocess

import pytest

from tools.release import deb, tree


def test_the_control_file_declares_the_python_of_the_wheel():
    fields = dict(line.split(": ", 1) for line in deb.control("aarch64", 7).splitlines() if ": " in line)
    assert fields["Architecture"] == "arm64"
    assert f"python3 (>= {tree.PYTHON})" in fields["Depends"]
    assert fields["Installed-Size"] == "7"


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_each_script_is_shell_that_stops_at_an_error(script):
    path = tree.SOURCES / script
    assert path.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in path.read_text()
    subprocess.run(["sh", "-n", str(path)], check=True)
