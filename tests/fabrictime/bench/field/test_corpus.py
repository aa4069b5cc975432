"""The figures of a corpus: how many cases, of how many sources, and how many are right."""

from fabrictime.bench import Figure, Missing
from fabrictime.bench.field import PARTS, corpus, imports
from fabrictime.bench.field._cases import Case, load


def test_a_source_counts_once_and_a_wrong_case_is_named() -> None:
    expect = {"verdict": "PASSED"}
    tables = {"good": {"expect": expect}, "bad": {"host": {"base": "x"}, "expect": expect}}
    cases = {
        name: Case(name, "audit", "software.load", f"https://example.org/1, {name}", "1", table)
        for name, table in tables.items()
    }
    lines: list[str] = []
    values = corpus.figures(cases, lines.append)
    assert set(values) == set(PARTS["corpus"])
    assert (values["field_cases"], values["sources"]) == (2, 1)
    assert isinstance(values["field_right"], Figure)
    assert (values["field_right"].value, values["field_right"].note) == (0.5, "1 of 2 cases; wrong: bad")
    assert isinstance(values["fresh_right"], Missing)
    assert any(line.startswith("corpus: bad: BadCase") for line in lines)


def test_no_import_ends_as_if_it_were_right_with_nothing_found() -> None:
    values = imports.measure(lambda line: None)
    assert set(values) == set(PARTS["imports"])
    assert values["silent_empty_imports"] == Figure(0)


def test_the_corpus_has_cases_of_all_kinds() -> None:
    assert {case.kind for case in load().values()} == {"audit", "imports", "hosts"}
