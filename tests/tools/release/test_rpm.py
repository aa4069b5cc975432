"""The agent's package for Red Hat."""

from tools.release import rpm, tree


def test_the_spec_lists_each_file_and_keeps_changed_settings(tmp_path):
    (tmp_path / "etc/fabrictime").mkdir(parents=True)
    (tmp_path / "etc/fabrictime/fabrictime.toml").touch()
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/a file").touch()
    (tmp_path / "opt/link").symlink_to("/usr/bin/true")
    text = rpm.spec(tmp_path)
    files = text.partition("%files\n")[2].partition("%post\n")[0].splitlines()
    assert files == [
        "%defattr(-,root,root)",
        '%config(noreplace) "/etc/fabrictime/fabrictime.toml"',
        '"/opt/a file"',
        '"/opt/link"',
    ]
    assert f"Requires: python{tree.PYTHON}, shadow-utils" in text
    for section, name in rpm.SCRIPTS.items():
        assert f"{section}\n{(tree.SOURCES / name).read_text()}" in text
