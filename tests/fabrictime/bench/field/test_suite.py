"""Cases that tests of the suite decide: each has tests that exist, and only passed tests count."""

from __future__ import annotations

import ast

import pytest

from fabrictime.bench.field.suite import CASES, ROOT, outcomes, wrong_cases

NAMED = "A10 A11 A12 A13 A15 A16 A21 A22 A23 A24 A25 A26 A27 B5 B8 B9 C2 C7 D6 D10"


def test_every_case_of_the_issue_is_there() -> None:
    assert set(CASES) == set(NAMED.split())


@pytest.mark.parametrize("test", sorted({test for tests in CASES.values() for test in tests}))
def test_the_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in tree.body if isinstance(node, functions)}


def test_a_case_is_right_if_all_its_tests_pass_with_all_parameters() -> None:
    lines = [
        "tests/a.py::test_one[x y-1] PASSED                     [ 10%]",
        "tests/a.py::test_one[z] FAILED                         [ 20%]",
        "tests/a.py::test_two PASSED                            [ 30%]",
        "tests/b.py::test_three SKIPPED (no java)               [ 40%]",
        "FAILED tests/a.py::test_one[z] - assert 0",
    ]
    found = outcomes(lines)
    assert found["tests/a.py::test_one"] == {"PASSED", "FAILED"}
    cases = {
        "X1": ["tests/a.py::test_two"],
        "X2": ["tests/a.py::test_two", "tests/a.py::test_one"],
        "X3": ["tests/b.py::test_three"],
        "X4": ["tests/c.py::test_four"],
        "X5": [],
    }
    assert wrong_cases(cases, found) == {
        "X2": "test_one failed, passed",
        "X3": "test_three skipped",
        "X4": "test_four did not run",
        "X5": "no test",
    }
