"""The bench of an agent's cost."""

import pytest

from fabrictime.bench import Missing
from fabrictime.bench.operate import agent


@pytest.mark.slow("starts two agents with eight NICs each")
@pytest.mark.timeout(600)
def test_a_quick_run_measures_memory_and_processor_time():
    figures = agent.measure(print, quick=True)
    assert set(figures) == set(agent.KEYS)
    if any(isinstance(figure, Missing) for figure in figures.values()):
        pytest.skip(figures["agent_pss_mb"].reason)
    assert all(figure.value > 0 for figure in figures.values())
