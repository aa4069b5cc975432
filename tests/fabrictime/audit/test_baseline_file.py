"""Baseline files: a round trip, and bad files refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.audit.baseline_file import load_baseline, write_baseline
from streams.audit.baseline import Baseline, BaselineError, Expected

FOUND = Baseline(runs=("r1",), expected=(Expected(sku="h100", fact="driver", texts=("570.1",)),))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.toml"
    write_baseline(path, FOUND)
    assert load_baseline(path) == FOUND
    assert [each.name for each in tmp_path.iterdir()] == ["baseline.toml"]
    as_json = tmp_path / "baseline.json"
    as_json.write_text(FOUND.model_dump_json(), encoding="utf-8")
    assert load_baseline(as_json) == FOUND


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x = ", "not a TOML file: Invalid value"), ("x = 1", "x: Extra inputs are not permitted")],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "baseline.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BaselineError) as error:
        load_baseline(path)
    assert str(error.value).startswith(f"baseline {path}: {reason}")
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder_that_is_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="No such file or directory"):
        load_baseline(tmp_path / "none.toml")
    with pytest.raises(BaselineError, match="expected a file to write"):
        write_baseline(tmp_path / "none" / "baseline.toml", FOUND)
