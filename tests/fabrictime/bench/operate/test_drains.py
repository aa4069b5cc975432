"""A short run of the bench that drains nodes of a real Slurm."""

import pytest

from fabrictime.bench import Figure, operate
from fabrictime.bench.operate._slurm import missing


@pytest.mark.timeout(300)
@pytest.mark.slow("starts a Slurm with eight nodes, a log and the service")
@pytest.mark.skipif(bool(missing()), reason=f"no {missing()}")
def test_each_verdict_drains_its_node():
    figures = operate.run(lambda line: None, quick=True, parts=("drains",))
    assert set(figures) == set(operate.PARTS["drains"])
    values = {name: figure.value for name, figure in figures.items() if isinstance(figure, Figure)}
    assert values["verdicts"] == 8
    assert values["verdicts_without_drain"] == 0
    assert 0 < values["verdict_to_cordon_ms_p50"] <= values["verdict_to_cordon_ms_p99"]
