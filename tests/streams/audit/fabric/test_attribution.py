"""Odd paths are tied to the link or NIC that explains them."""

from __future__ import annotations

from streams.audit.fabric.attribution import explain

PATHS = [(f"h{a}>l", f"l>h{b}") for a in range(6) for b in range(6) if a != b]


def test_a_link_that_all_odd_paths_cross_explains_them() -> None:
    odd = [at for at, path in enumerate(PATHS) if "l>h3" in path]
    found = explain(PATHS, odd)
    assert found.elements == {"l>h3": odd}
    assert found.crossing == {"l>h3": 5}
    assert found.rest == []


def test_two_links_are_separated() -> None:
    odd = [at for at, path in enumerate(PATHS) if {"l>h3", "h1>l"} & set(path)]
    assert set(explain(PATHS, odd).elements) == {"l>h3", "h1>l"}


def test_single_odd_paths_are_explained_by_no_link() -> None:
    found = explain(PATHS, [3, 17])
    assert (found.elements, found.rest) == ({}, [3, 17])


def test_a_link_with_healthy_paths_explains_nothing() -> None:
    odd = [at for at, path in enumerate(PATHS) if "l>h3" in path][:3]
    assert explain(PATHS, odd).elements == {}
    assert list(explain(PATHS, odd, share=0.5).elements) == ["l>h3"]
