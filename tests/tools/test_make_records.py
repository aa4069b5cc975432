"""Record types from schemas: unions, arrays, enums, documentation, and schemas that contradict each other."""

import ast

import pytest

from tools.make_records import Generator, _doc

STATE = {"type": "enum", "name": "State", "symbols": ["UP", "DOWN"], "doc": "state of a link"}
LINK = {
    "type": "record",
    "name": "Link",
    "doc": "ns and more",
    "fields": [
        {"name": "state", "type": STATE, "doc": "its state"},
        {"name": "rate_bps", "type": ["null", "long"], "doc": "bit/s"},
        {"name": "hops", "type": {"type": "array", "items": "string"}, "doc": "ids"},
    ],
}


def test_a_record_becomes_a_typed_dictionary_after_its_enum():
    made = Generator()
    assert made.type_of(LINK) == "Link"
    text = made.text()
    ast.parse(text)
    assert text.index("class State(StrEnum)") < text.index("class Link(TypedDict)")
    for line in ("    state: State", "    rate_bps: int | None", "    hops: list[str]", '    UP = "UP"'):
        assert f"{line}\n" in text


def test_two_schemas_may_share_a_definition_and_not_contradict():
    made = Generator()
    made.type_of(LINK)
    made.type_of(STATE)
    with pytest.raises(ValueError, match="State: two schemas"):
        made.type_of({**STATE, "symbols": ["UP"]})


@pytest.mark.parametrize(
    ("text", "doc"),
    [
        ("its state", '    """Its state."""\n'),
        ("ns since the epoch", '    """ns since the epoch."""\n'),
        ("done?", '    """Done?"""\n'),
    ],
)
def test_a_doc_is_a_sentence_and_a_unit_stays_small(text, doc):
    assert _doc(text) == doc


@pytest.mark.parametrize("tokens", range(15, 60))
def test_a_long_doc_is_wrapped_and_stays_complete(tokens):
    text = " ".join(f"word{number}" for number in range(tokens))
    doc = _doc(text)
    assert max(map(len, doc.splitlines())) <= 110
    assert ast.literal_eval(doc.strip()).split() == f"W{text[1:]}.".split()
