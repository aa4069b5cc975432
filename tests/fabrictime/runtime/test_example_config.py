"""The example file: current, every key commented, and with the values in force."""

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.runtime.config import load
from fabrictime.runtime.example_config import _value, example
from fabrictime.runtime.shared_values import SHARED

ROOT = Path(__file__).resolve().parents[3]


def test_example_file_is_current():
    text = (ROOT / "docs" / "fabrictime.toml").read_text()
    assert text == example(), "run fabrictime config example > docs/fabrictime.toml"


def test_example_file_has_the_values_in_force(tmp_path):
    """With every commented default taken at its word, the settings are those of no file at all."""
    lines = [
        line.removeprefix("#")
        if line.startswith("#") and not line.startswith("# ") and not line.endswith(" =")
        else line
        for line in example().splitlines()
    ]
    path = tmp_path / "ft.toml"
    path.write_text("\n".join(lines))
    given = load(path)
    given.check()
    for table_name in ("log", "history", "probes", "streams", "web", "fabric"):
        assert getattr(given, table_name) == getattr(load(None), table_name)


def test_descriptions_of_shared_keys_name_existing_keys():
    tables = example()
    for full in SHARED:
        table, _, key = full.rpartition(".")
        assert f"[{table}]" in tables
        assert f"\n#{key} =" in tables


def test_the_file_as_it_is_sets_nothing():
    assert not any(_leaves(tomllib.loads(example())))


def _leaves(table):
    for value in table.values():
        yield from _leaves(value) if isinstance(value, dict) else [value]


scalars = st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="ascii"), max_size=9)
keys = st.text(st.sampled_from("ab"), min_size=1)
values = st.recursive(scalars, lambda one: st.lists(one, max_size=3) | st.dictionaries(keys, one, max_size=3))


@given(values)
def test_a_default_is_written_as_toml_reads_it(value):
    if value == {}:
        return
    assert tomllib.loads(f"key = {_value(value)}")["key"] == value
