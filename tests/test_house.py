"""The language and the form of the code base stay within their targets (`tools/house.py`)."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.xdist_group("lint")


def _load():
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


house = _load()


@pytest.fixture(scope="module")
def figures():
    return house.measure()


def test_prose_is_plain(figures):
    report = house.report(figures)
    worst = "\n".join(text for text, _ in figures.worst.most_common(20))
    assert report["who_per_1000_words"] <= 3, worst
    assert report["speech_per_1000_words"] <= 1, worst
    assert report["headless_share"] <= 0.001, "\n".join(figures.headless[:20])


def test_no_name_contains_a_denied_word(figures):
    assert not figures.denied_places, "\n".join(figures.denied_places[:40])


def test_files_classes_and_functions_are_small(figures):
    report = house.report(figures)
    assert report["largest_python_file"] <= 600, report["largest_python_file_name"]
    assert report["largest_class"] <= 350, report["largest_class_name"]
    assert report["largest_c_file"] <= 900, report["largest_c_file_name"]
    assert report["complex_share"] <= 0.02, "\n".join(figures.complex_functions)


def test_the_formatter_is_obeyed(figures):
    assert figures.formatter_skips <= 20


def test_records_are_typed_and_read_by_one_layer(figures):
    report = house.report(figures)
    assert report["untyped_record_reads"] <= 50
    assert report["local_record_types"] == 0
    assert not figures.consumers


def test_modules_have_a_test_of_their_name(figures):
    assert house.report(figures)["modules_with_test_share"] >= 0.9


def test_a_denied_word_is_found_in_a_name():
    denied = {"way": "route", "in_a_row": "loss_streak"}
    assert house.denied_in("FlowWay", denied) == ["way"]
    assert house.denied_in("losses_in_a_row", denied) == ["in_a_row"]
    assert house.denied_in("always_away_gateway", denied) == []


def test_headless_clauses_and_speech_are_counted():
    figures = house.Figures()
    house.measure_prose("What is told of links is read. The prober publishes a batch.", "here", figures)
    assert (figures.who, figures.speech, len(figures.headless)) == (1, 1, 1)


def test_complexity_counts_branches_of_the_function_alone():
    import ast

    code = (
        "def f(a):\n    if a and a.b:\n        return [x for x in a if x]\n    def g():\n        if a: pass\n"
    )
    assert house.complexity(ast.parse(code).body[0]) == 5
