"""Values of a JSON text that arrives in chunks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.postmortem.readers.json_stream import Damaged, JsonText, named_value

ROW = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4)


@given(st.lists(ROW | st.integers(), max_size=6), st.integers(1, 9))
def test_values_do_not_depend_on_the_chunks(rows, size):
    text = json.dumps({"a": 1, "traceEvents": rows})
    stream = JsonText(text[at : at + size] for at in range(0, len(text), size))
    assert stream.skip_to("traceEvents")
    assert list(stream.values()) == rows


def test_a_cut_text_yields_its_whole_values():
    stream = JsonText(iter(['{"a": 1}\n{"a": 2}\n{"a"']))
    values = stream.values()
    assert [next(values), next(values)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(Damaged):
        next(values)


def test_a_named_value():
    assert named_value('x {"info": {"rank": 3}, "more', "info") == {"rank": 3}
    assert named_value('{"info": {"rank"', "info") is None
