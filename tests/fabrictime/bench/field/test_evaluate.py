"""A case that raises an exception is wrong, and hides no other."""

from fabrictime.bench.field._cases import Case
from fabrictime.bench.field._evaluate import fault_of, wrong_cases


def case(case_id: str, host: dict) -> Case:
    table = {"host": host, "expect": {"verdict": "PASSED"}}
    return Case(case_id, "audit", "software.load", "s", "1", table)


def test_an_exception_is_a_fault_with_its_place() -> None:
    assert "BadCase at host_of" in fault_of(case("x", {"base": "other"}))


def test_wrong_cases_are_named() -> None:
    busy = {"files": {"/proc/loadavg": "90.0 90.0 90.0 1/1 1\n"}}
    assert set(wrong_cases([case("good", {}), case("bad", {"base": "x"}), case("busy", busy)])) == {
        "bad",
        "busy",
    }
