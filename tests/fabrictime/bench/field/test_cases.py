"""Cases are read from files, and lists of ids beside them."""

import pytest

from fabrictime.bench.field._cases import BadCase, expected, ids, load, text_fault


def test_a_case_is_named_by_its_file_and_its_check_counts(tmp_path) -> None:
    (tmp_path / "X1.toml").write_text(
        'kind = "imports"\nformat = "ptm"\nsource = "https://example.org/1"\nbatch = "collected 1"\n'
    )
    [case] = load(tmp_path).values()
    assert (case.case_id, case.check, case.is_collected) == ("X1", "ptm", True)


@pytest.mark.parametrize("text", ['kind = "rumour"\n', 'kind = "audit"\n', "kind ="])
def test_a_file_that_is_no_case_is_refused_with_its_name(tmp_path, text) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(BadCase, match=r"a\.toml"):
        load(tmp_path)


def test_a_list_of_ids_has_remarks(tmp_path) -> None:
    (tmp_path / "open.txt").write_text("# a remark\nB1 why\n\nB2\n")
    assert ids(tmp_path / "open.txt") == {"B1", "B2"}
    assert ids(tmp_path / "missing.txt") == set()


def test_a_right_result_may_have_one_verdict_or_several() -> None:
    one, several = expected([{"verdict": "PASSED"}, {"verdict": ["PASSED", "SKIPPED"]}], "node.fans")
    assert one.verdicts == ("PASSED",)
    assert several.verdicts == ("PASSED", "SKIPPED")
    assert one.subjects is None


def test_a_missing_text_and_an_unwanted_one_are_wrong() -> None:
    assert text_fault(["Queue"], ["cpu"], "a queue is stuck") == ""
    assert text_fault(["link"], [], "a queue is stuck")
    assert text_fault([], ["STUCK"], "a queue is stuck")
