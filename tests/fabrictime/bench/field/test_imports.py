"""A case of an import is run by the command, and its topology is compared."""

import pytest

from fabrictime.bench.field._cases import Case
from fabrictime.bench.field._imports import fault_of, import_case

DOT = 'graph g {\n "h1":"eth0" -- "leaf1":"swp1"\n}\n'


def case(expect, text=DOT) -> Case:
    return Case(
        "x",
        "imports",
        "ptm",
        "s",
        "1",
        {"files": {"g.dot": text}, "options": {"hosts": "h*"}, "expect": expect},
    )


def test_the_command_writes_nodes_and_cables() -> None:
    imported = import_case(case({}))
    assert imported.nodes == {"h1": "host", "leaf1": "leaf"}
    assert imported.cables == {frozenset({"h1:eth0", "leaf1:swp1"})}
    assert not imported.is_silent_and_empty


@pytest.mark.parametrize(
    ("expect", "fault"),
    [
        ({"hosts": ["h1"], "cables": ["leaf1:swp1 h1:eth0"], "kinds": {"leaf1": "leaf"}}, ""),
        ({"exit_code": 1}, "exit code: 0, expected 1"),
        ({"host_count": 2}, "number of hosts: 1, expected 2"),
        ({"cables": []}, "cables: "),
        ({"kinds": {"leaf1": "spine"}}, "kind of leaf1"),
        ({"contains": ["left out"]}, "does not contain"),
    ],
)
def test_each_expectation_is_compared(expect, fault) -> None:
    found = fault_of(case(expect))
    assert fault in found
    assert bool(found) == bool(fault)
