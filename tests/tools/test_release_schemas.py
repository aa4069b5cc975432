"""Releasing schemas: a missing line is named by the check and added otherwise, once; older lines stay."""

import json

import pytest

from schemas import codec
from tools import release_schemas


@pytest.fixture
def released(tmp_path, monkeypatch):
    path = tmp_path / "released.jsonl"
    monkeypatch.setattr(release_schemas, "RELEASED", path)
    monkeypatch.setattr(codec, "record_names", lambda: ["Nic", "Reject"])
    return path


def test_the_check_names_a_missing_line_and_writes_nothing(released, capsys):
    assert release_schemas.main(["--check"]) == 1
    assert "missing: Nic" in capsys.readouterr().out
    assert not released.exists()


def test_a_release_adds_lines_and_keeps_older_ones(released, capsys):
    older = '{"fingerprint":"0123456789abcdef","schema":{}}\n'
    released.write_text(older)
    assert release_schemas.main([]) == 0
    lines = released.read_text().splitlines(keepends=True)
    assert lines[0] == older
    assert [json.loads(line)["schema"]["name"] for line in lines[1:]] == ["Nic", "Reject"]
    capsys.readouterr()
    assert release_schemas.main([]) == release_schemas.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", codec.record_names())
def test_a_line_has_the_schema_without_its_docs(name):
    row = json.loads(release_schemas.line_of(name))
    assert row["fingerprint"] == codec.fingerprint_of(name).hex()
    assert codec.fingerprint_of_schema(row["schema"]).hex() == row["fingerprint"]
    assert '"doc":' not in json.dumps(row, separators=(",", ":"))
    limits = [field.get("max") for field in row["schema"]["fields"]]
    assert limits == [field.get("max") for field in codec.raw_schema(name)["fields"]]
