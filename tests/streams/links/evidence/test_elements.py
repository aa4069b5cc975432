"""Elements: links and NICs as columns that grow."""

from __future__ import annotations

from streams.links.evidence.elements import COLUMNS, FIRST_CAPACITY, ElementTable
from streams.links.rules import NEVER_NS
from streams.runtime.loss_rates import NOTHING


def test_an_element_keeps_its_index_while_the_columns_grow() -> None:
    table = ElementTable()
    first = table.element("l1:1>l2:1", 7)
    for number in range(3 * FIRST_CAPACITY):
        table.element(f"l1:x{number}>l3:x{number}", 8)
    assert table.element("l1:1>l2:1", 9) == first
    assert table.first_seen_ns[first] == table.last_answer_ns[first] == 7
    assert len({len(getattr(table, column)) for column in COLUMNS}) == 1
    assert len(table.last_answer_ns) >= len(table.names)


def test_the_empty_element_always_lives() -> None:
    assert ElementTable().last_answer_ns[NOTHING] == NEVER_NS


def test_both_directions_of_a_cable_count_as_one_of_the_cables_between_two_nodes() -> None:
    table = ElementTable()
    for name in ("l1:1>l2:4", "l2:4>l1:1", "l1:2>l2:5"):
        table.element(name, 0)
    assert table.parallel_cables == {("l1", "l2"): {("1", "4"), ("2", "5")}}
    assert table.links_at["l1"] == table.links_at["l2"] == {1, 2, 3}
    assert table.nodes_of(2) == ("l2", "l1")


def test_a_nic_has_no_ends_and_knows_its_links() -> None:
    table = ElementTable()
    nic = table.element("h1/eth0", 0, nic=True)
    link = table.element("h1:eth0>l1:1", 0)
    assert table.links_of(nic) == []
    table.attach(link, nic)
    assert table.links_of(nic) == [link]
    second = table.element("h1:eth0>l2:1", 0)
    table.attach(second, nic)
    assert table.links_of(nic) == [link, second], "a bond has several"
    table.recabled[link] = second
    assert table.links_of(nic) == [second], "unless the cable was moved"
    assert bool(table.is_nic[nic])
    assert table.parallel_cables.keys() == {("h1", "l1"), ("h1", "l2")}


def test_nics_report_if_their_event_is_newer() -> None:
    table = ElementTable()
    table.nic_event_ns[table.element("h1/eth0", 0, nic=True)] = 10
    table.nic_event_ns[table.element("h2/eth0", 0, nic=True)] = 20
    assert [table.reporting_nics(since) for since in (9, 10, 20)] == [2, 1, 0]
    assert table.among([2]).nonzero()[0].tolist() == [2]
