"""Records of known routes: each end traces the direction in which it sends."""

from __future__ import annotations

from producers.sim.traces import KnownPath, path_records
from schemas import codec
from schemas.records import PathMaps


def test_each_end_traces_the_direction_in_which_it_sends() -> None:
    there, back = ["h1:e>leaf1:1", "leaf1:2>h2:e"], ["h2:e>leaf1:2", "leaf1:1>h1:e"]
    paths = [KnownPath("h1/e", "h2/e", port, there, back) for port in (9320, 9321)]
    requests, answers = records = list(path_records(paths, traced_ns=7))
    assert [(record["nic"], record["peer"], record["traced_ns"]) for record in records] == [
        ("h1/e", "h2/e", 7),
        ("h2/e", "h1/e", 7),
    ]
    assert [(row["path"], row["leg"], row["links"]) for row in requests["paths"]] == [
        (9320, "REQUEST", there),
        (9321, "REQUEST", there),
    ]
    assert {(row["leg"], *row["links"]) for row in answers["paths"]} == {("ANSWER", *back)}
    for record in records:
        assert codec.decode(codec.encode(PathMaps, record), PathMaps) == record
