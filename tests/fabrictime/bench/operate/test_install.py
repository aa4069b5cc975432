"""The bench of an installation: what it needs, and one installation."""

import pytest

from fabrictime.bench import Figure, Missing
from fabrictime.bench.operate import install


def test_without_a_package_the_figures_are_missing_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "PACKAGES", tmp_path)
    figures = install.measure(print)
    assert set(figures) == {"install_to_synced_s", "start_to_synced_s"}
    assert all(isinstance(figure, Missing) and figure.reason for figure in figures.values())


@pytest.mark.slow("makes a root file system of Debian and installs the agent on it")
@pytest.mark.timeout(1800)
def test_an_installed_agent_is_synchronised():
    figures = install.measure(print)
    if isinstance(figures["install_to_synced_s"], Missing):
        pytest.skip(figures["install_to_synced_s"].reason)
    assert isinstance(figures["start_to_synced_s"], Figure)
    assert 0 < figures["start_to_synced_s"].value < figures["install_to_synced_s"].value
