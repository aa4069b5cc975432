"""Words of the page: names and units do not count, and every other word is English or in the glossary."""

from __future__ import annotations

from fabrictime.bench.web.terms import GLOSSARY, glossary_terms, terms_in, unexplained

TABLE = "| term | definition |\n|---|---|\n| suspect pair | Two NICs |\n"
TABLE += "| outcome | End. APPLIED: done; NO_FLOW |\n"


def test_names_units_and_numbers_are_no_terms() -> None:
    text = "leaf1:swp5 ⇄ spine1:swp1 is down, 12.5 µs at h17/eth3 (3 of 24); "
    text += "node.memory, --mode=ACT, fabric.queues."
    assert list(terms_in(text)) == ["is", "down", "at", "of"]
    assert list(terms_in("Don't use the fleet's 'two-way' words")) == [
        "Don't",
        "use",
        "the",
        "fleet",
        "two",
        "way",
        "words",
    ]


def test_a_term_needs_plain_english_or_an_entry() -> None:
    glossary = glossary_terms(TABLE)
    assert {"suspect", "pair", "applied", "no_flow", "flow"} <= glossary
    texts = [
        "A suspect pair, suspect pairs of fabrictime: APPLIED, 3 ppm",
        "the frobnicator's pace",
        "Pairs pace",
    ]
    english = {"a", "of", "the", "pace"}
    assert unexplained(texts, english, glossary) == {"frobnicator": "the frobnicator's pace"}


def test_entries_of_the_glossary_are_read() -> None:
    assert {"rail", "wander", "holdover", "grey", "entropy"} <= glossary_terms(GLOSSARY.read_text())
