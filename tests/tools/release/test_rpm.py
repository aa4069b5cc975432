"""Packages for Red Hat."""

from tools.release import rpm, tree
from tools.release.packages import AGENT, SERVICES


def test_the_spec_lists_each_file_and_keeps_changed_settings(tmp_path):
    (tmp_path / "etc/fabrictime").mkdir(parents=True)
    (tmp_path / "etc/fabrictime/fabrictime.toml").touch()
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/a file").touch()
    (tmp_path / "opt/link").symlink_to("/usr/bin/true")
    text = rpm.spec(AGENT, tmp_path)
    files = text.partition("%files\n")[2].partition("%post\n")[0].splitlines()
    assert files == [
        "%defattr(-,root,root)",
        '%config(noreplace) "/etc/fabrictime/fabrictime.toml"',
        '"/opt/a file"',
        '"/opt/link"',
    ]
    assert f"Requires: python{tree.PYTHON}, shadow-utils" in text
    for section, name in rpm.SCRIPTS.items():
        assert f"{section}\n{AGENT.text(name)}" in text


def test_the_services_need_the_agent_of_their_version(tmp_path):
    text = rpm.spec(SERVICES, tmp_path)
    assert f"\nRequires: fabrictime = {rpm.version()}-{rpm.RELEASE}, shadow-utils\n" in text
    assert "Name: fabrictime-services\n" in text
