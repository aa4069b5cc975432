"""Odd but well-formed settings and fleets: each loads, or is refused in lines that name a key."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabrictime.runtime.config import TABLES, ConfigError, load, model_of
from fabrictime.runtime.fleet import file_nics
from producers.settings import NicSettings
from tests.examples import examples

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.sampled_from(
        ["", "~", "~/x", "~no-such-user/x", "a\0b", "\ud800", "sim:", "sim:x", "[::1]:1", "1:2:3"]
    )
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=6,
)
FEW = settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))


def tables():
    """Return a strategy of settings with known and unknown tables and keys."""

    def table(name):
        keys = st.sampled_from([*model_of(name).model_fields, "no_such_key"]) | st.text(max_size=4)
        return st.dictionaries(keys, VALUES, max_size=4) | VALUES

    known = st.fixed_dictionaries({}, optional={name: table(name) for name in TABLES})
    return known | st.dictionaries(st.text(max_size=4), VALUES, max_size=2) | VALUES


def json_file(value):
    """Write a value to a JSON file of a temporary folder."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "odd.json"
    path.write_text(json.dumps(value))
    return folder, path


def refusal(read):
    """Return the lines of the ConfigError that `read` raises; none if it succeeds."""
    try:
        read()
    except ConfigError as error:
        return str(error).splitlines() or ["no text"]
    return []


@given(tables())
@FEW
def test_odd_settings_load_or_name_their_keys(value):
    folder, path = json_file(value)
    with folder:
        lines = refusal(lambda: load(path).check())
    assert all(str(path) in line or "topology file" in line for line in lines), lines
    assert max(map(len, lines), default=0) < 2_000


ROWS = st.lists(
    st.fixed_dictionaries(
        {}, optional={name: VALUES | st.just("10.0.0.1") | st.just("h1") for name in NicSettings.model_fields}
    )
    | VALUES,
    max_size=3,
)


@given(st.fixed_dictionaries({"nics": ROWS | VALUES}) | VALUES)
@FEW
def test_odd_fleets_load_or_are_one_line(value):
    folder, path = json_file(value)
    with folder:
        lines = refusal(lambda: file_nics(path))
    assert len(lines) <= 1
    assert all(line.startswith(f"fleet {path}: ") for line in lines)


def test_a_number_of_very_many_digits_is_one_line(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(f"[up]\nworkers = 0x{'f' * 9_000}\n")
    with pytest.raises(ConfigError, match=r"up\.workers = "):
        load(path).check()
