"""Every field case is right, except those that `open.txt` lists."""

from collections import Counter

import pytest

from fabrictime.bench.field._cases import OPEN, WRONG_AT_FIRST, BadCase, Case, ids, load
from fabrictime.bench.field._evaluate import fault_of

CASES = load()
STILL_WRONG = ids(OPEN)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.case_id)
def test_the_case_is_right(case: Case) -> None:
    fault = fault_of(case)
    if case.case_id in STILL_WRONG:
        assert fault, f"{case.case_id} is right: remove it from {OPEN.name}"
    else:
        assert not fault, f"{case.case_id} ({case.source}): {fault}"


def test_the_lists_name_cases() -> None:
    assert STILL_WRONG | ids(WRONG_AT_FIRST) <= CASES.keys()


def test_no_check_has_more_than_three_cases() -> None:
    checks = Counter(case.check for case in CASES.values())
    assert {check: count for check, count in checks.items() if count > 3} == {}


def test_a_file_that_is_no_case_is_refused(tmp_path) -> None:
    (tmp_path / "a.toml").write_text('kind = "rumour"\n')
    with pytest.raises(BadCase, match=r"a\.toml"):
        load(tmp_path)
