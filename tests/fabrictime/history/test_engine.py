"""The engine without chdb: quoting, capped limits, errors, the directory's owner and its configuration."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.history import engine
from fabrictime.history.settings import HistorySettings
from fabrictime.history.sql import tokens


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=30))
def test_any_value_stays_one_string_and_any_name_one_identifier(text):
    assert [token.kind for token in tokens(engine._literal(text))] == ["string"]
    assert [token.kind for token in tokens(engine._identifier(text))] == ["quoted"]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("5", "5"),
        ("30", "30"),
        ("31", "30.0"),
        ("0", "30.0"),
        ("-1", "30.0"),
        ("x", "30.0"),
        ("nan", "30.0"),
        ("inf", "30.0"),
    ],
)
def test_a_readers_limit_can_only_be_lowered(value, kept):
    assert engine._capped(value, 30.0) == kept


def test_an_error_has_clickhouses_number_and_no_stack():
    text = "Code: 60. DB::Exception: Table x does not exist., Stack trace (when copying): 0. secret"
    found = engine._engine_error(RuntimeError(text))
    assert (found.code, str(found)) == (60, "DB::Exception: Table x does not exist.")
    other = engine._engine_error(RuntimeError("no number" + "x" * 9000))
    assert (other.code, len(str(other)) < 3000) == (engine.UNKNOWN_EXCEPTION, True)


def test_a_second_owner_of_a_directory_is_refused_with_the_name_of_the_first(tmp_path):
    lock = engine._take(tmp_path)
    with pytest.raises(engine.DirectoryInUse, match="held by process "):
        engine._take(tmp_path)
    lock.close()
    engine._take(tmp_path).close()


def test_the_configuration_grants_readers_nothing_but_reading_and_closes_settings_that_reach_files(tmp_path):
    folder = tmp_path / "a & b"
    folder.mkdir()
    settings = HistorySettings(directory=folder, memory_limit_mib=1024, query_memory_limit_mib=512)
    config = ET.parse(engine._write_config(folder, settings)).getroot()
    assert config.findtext("max_server_memory_usage") == str(1024 * 2**20)
    assert config.findtext("tmp_path") == f"{folder}/tmp/"
    users = ET.parse(config.findtext("user_directories/users_xml/path")).getroot()
    grants = [query.text for query in users.findall(f"roles/{engine.READER}/grants/query")]
    assert grants
    assert all(grant.startswith(("GRANT SELECT ON system.", "GRANT SELECT, SHOW ON")) for grant in grants)
    closed = {each.tag for each in users.find("profiles/default/constraints")}
    assert {"format_schema", "dialect", "format_avro_schema_registry_url"} <= closed
