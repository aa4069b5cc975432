"""Releasing schemas: a missing copy is named by the check and written otherwise, once."""

import shutil

import pytest

from schemas import codec
from tools import release_schemas

ROOT = release_schemas.ROOT


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "schemas").mkdir()
    shutil.copy(ROOT / "schemas" / "Nic.avsc", tmp_path / "schemas")
    monkeypatch.setattr(release_schemas, "ROOT", tmp_path)
    return tmp_path


def test_the_check_names_a_missing_copy_and_writes_nothing(checkout, capsys):
    assert release_schemas.main(["--check"]) == 1
    assert "missing: schemas/released/Nic." in capsys.readouterr().out
    assert not (checkout / "schemas" / "released").exists()


def test_a_release_is_named_by_its_fingerprint_and_made_once(checkout, capsys):
    assert release_schemas.main([]) == 0
    [copy] = (checkout / "schemas" / "released").iterdir()
    assert copy.name == f"Nic.{codec.fingerprint_of('Nic').hex()}.avsc"
    assert copy.read_text() == (ROOT / "schemas" / "Nic.avsc").read_text()
    capsys.readouterr()
    assert release_schemas.main([]) == release_schemas.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
