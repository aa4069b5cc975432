"""The bench of hosts with many NICs: its figures, and one form for real."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.networks.nics import Outcome, figures_of, measure
from fabrictime.testbed.processes.userns import namespaces_allowed


def test_figures_are_over_the_nics_of_all_forms():
    figures = figures_of([Outcome(6, 6, 20, 0), Outcome(24, 21, 200, 2)], ["vrfs"])
    note = "30 NICs in 2 forms; this kernel lacks the devices of vrfs"
    assert figures == {
        "egress_right": Figure(0.9, note=note),
        "unreachable_peers_chosen": Figure(2, note=note),
    }


def test_without_a_form_nothing_is_measured():
    with pytest.raises(CannotRun, match="no form could be built, tried vrfs"):
        figures_of([], ["vrfs"])


@pytest.mark.fabric
def test_two_forms_for_real():
    if (denied := namespaces_allowed()) is not None:
        pytest.skip(denied)
    figures = measure(print, quick=True)
    assert [figures[key].value for key in ("egress_right", "unreachable_peers_chosen")] == [1.0, 0]
