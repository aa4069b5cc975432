"""The figures of dead links on the testbed: each wrong verdict lowers one."""

from __future__ import annotations

import math

import pytest

from fabrictime.bench import Figure
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.networks import PARTS, TARGETS
from fabrictime.bench.networks.links import Outcome
from fabrictime.bench.networks.names import CableNames
from fabrictime.bench.networks.testbed import FormOutcome, figures_of

NAMED, IN_SET, MISSED = Outcome(True, 1, [], 0.1), Outcome(True, 4, [], 2.2), Outcome(False, 0, ["a<>b"])
CABLES = {"h1:e<>leaf1:p1", "leaf1:p2<>spine1:p1", "leaf1:p3<>spine2:p1", "leaf2:p1<>spine1:p2"}
UPLINK = ["h1:e>leaf1:p1", "leaf1:p2>spine1:p1"]


def form(*deaths: Outcome, invented: tuple[str, ...] = (), alerts_s: tuple[float, ...] = ()) -> FormOutcome:
    found = FormOutcome()
    found.deaths = {f"link{number}": death for number, death in enumerate(deaths)}
    found.invented, found.alerts_s = list(invented), list(alerts_s)
    return found


def test_figures_are_over_all_links_of_all_forms() -> None:
    forms = {
        "loopback": form(NAMED, MISSED, invented=("x>y",), alerts_s=(9.0,)),
        "silent": form(IN_SET, NAMED, alerts_s=(2.2, 3.1)),
        "silent with a file": form(alerts_s=(8.0,)),
    }
    figures = figures_of(forms, ["flat"])
    note = "4 deaths in 3 forms; missed: loopback link1; this kernel lacks parts of flat"
    assert figures["dead_link_named_or_in_set"] == Figure(0.75, note=note)
    assert figures["false_links"] == Figure(2.0, note="loopback: x>y; loopback: a<>b")
    assert figures["dead_link_set_size_p50"] == Figure(1.0, note="largest 4")
    assert figures["unexplained_loss_alert_s"] == Figure(3.1, note="the slowest of 2 without a file")
    assert set(figures) == set(PARTS["testbed"]) <= set(TARGETS)


def test_an_alert_that_never_came_is_no_figure() -> None:
    (value,) = [v for k, v in figures_of({"silent": form(NAMED)}).items() if k.startswith("unexplained")]
    assert isinstance(value, Figure)
    assert math.isnan(float(value.value))
    with pytest.raises(CannotRun, match="no form could be built, tried flat"):
        figures_of({}, ["flat"])


def test_a_name_that_stood_for_cables_between_different_switches_is_invented() -> None:
    names = CableNames(CABLES, {})
    names.note(["h1:e>10.255.0.1:x", "10.255.0.1:ip>10.255.1.1:ip"], UPLINK)
    assert names.merged() == {}
    assert names.cables_of(["10.255.0.1:ip<>10.255.1.1:ip", "h1/e"]) == {
        "leaf1:p2<>spine1:p1",
        "h1:e<>leaf1:p1",
    }
    names.note(["h1:e>10.255.0.1:x", "10.255.0.1:ip>10.255.1.1:ip"], [UPLINK[0], "leaf1:p3>spine2:p1"])
    assert list(names.merged()) == ["10.255.0.1:ip>10.255.1.1:ip"]


def test_a_switch_stands_for_its_cables_and_leaves_hide_those_between_them() -> None:
    names = CableNames(CABLES, {"leaf1": {"h1:e<>leaf1:p1", "leaf1:p2<>spine1:p1", "leaf1:p3<>spine2:p1"}})
    links = [*UPLINK, "spine1:p2>leaf2:p1", "leaf2:p2>h2:e"]
    names.note(["h1:e>l1:x", "l1:ip>l2:ip", "l2:x>h2:e"], links)
    assert names.cables_of(["l1:ip<>l2:ip"]) == {"leaf1:p2<>spine1:p1", "leaf2:p1<>spine1:p2"}
    assert len(names.cables_beside(["leaf1"])) == 3
    assert names.cables_beside(["nowhere"]) == set()
    names.note(["h1:e>layer-2:h1.e", "layer-2:h2.e>h2:e"], links, layer_2=True)
    assert names.cables_of(["h1:e<>layer-2:h1.e"]) == {"h1:e<>leaf1:p1"}
