"""Debian packages: control files and scripts; tests/test_release.py installs the agent's."""

import subprocess

import pytest

from tools.release import deb, tree
from tools.release.packages import AGENT, PACKAGES, SCRIPTS, SERVICES


def fields_of(package):
    lines = deb.control(package, "aarch64", 7).splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_control_file_declares_the_python_of_the_wheel():
    fields = fields_of(AGENT)
    assert fields["Architecture"] == "arm64"
    assert f"python3 (>= {tree.PYTHON})" in fields["Depends"]
    assert fields["Installed-Size"] == "7"


def test_the_services_need_the_agent_of_their_version():
    fields = fields_of(SERVICES)
    assert fields["Package"] == "fabrictime-services"
    assert fields["Depends"].startswith(f"fabrictime (= {deb.version()}), ")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_is_shell_that_stops_at_an_error(package, script):
    text = package.text(script)
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
