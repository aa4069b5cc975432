"""A short run of the bench that kills the notifier."""

import pytest

from fabrictime.bench import Figure, operate


@pytest.mark.timeout(300)
@pytest.mark.slow("starts six processes of the notifier, one after another")
def test_a_quick_run_loses_nothing_and_gives_all_figures():
    figures = operate.run(lambda line: None, quick=True, parts=("alerts",))
    assert set(figures) == set(operate.PARTS["alerts"])
    values = {name: figure.value for name, figure in figures.items() if isinstance(figure, Figure)}
    assert values["alert_delivery_lost"] == 0
    assert values["alert_repeats_per_kill"] <= 1
    assert values["alert_notifier_kills"] >= 4
