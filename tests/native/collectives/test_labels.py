"""Names of users: printable, and different where their bytes are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from native.collectives.labels import MAX_LABEL, printable
from schemas.formats import FORMATS


def test_names_of_any_script_stay_as_they_are() -> None:
    for name in ("train-7", "训练一", "推理二", "Ελλάδα", "обучение", "🚀 llm", "a\u00a0b", "c:\\data", ""):
        assert printable(name.encode()) == name


def test_bytes_that_are_no_text_are_shown_as_numbers() -> None:
    assert printable(b"a\x1b[31m\n\xff") == "a\\x1b[31m\\x0a\\xff"
    assert printable("a\u0085b".encode()) == "a\\xc2\\x85b"
    assert printable(b"a\\xff") == "a\\x5cxff", "the text of such a number is another name"


@given(st.lists(st.one_of(st.binary(max_size=127), st.text(max_size=80).map(str.encode)), unique=True))
def test_labels_are_printable_and_as_many_as_names(names: list[bytes]) -> None:
    labels = [printable(name) for name in names]
    assert len(set(labels)) == len(names)
    assert FORMATS["label"].first_wrong(labels) is None
    assert all(len(label) <= MAX_LABEL for label in labels)
