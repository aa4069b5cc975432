"""Services by name: each stage runs in one of them, and what cannot start is one line and its exit code."""

import sys

import pytest

from fabrictime.runtime import service
from fabrictime.runtime.config import load
from fabrictime.runtime.service import APART, LOADED, SERVICES
from fabrictime.runtime.supervisor import CONFIG_EXIT
from fabrictime.testbed.processes.scheduling_priority import NICE, REAL_TIME
from streams import app


@pytest.fixture
def quiet(monkeypatch):
    """Leave this process as it is: no priority, no garbage collection, no signal of a parent's death."""
    for name in ("apply_priority", "die_with_parent", "keep_still"):
        monkeypatch.setattr(service, name, lambda *_: None)
    monkeypatch.setattr(service, "aside", lambda work: work())


def test_worker_and_services_apart_run_every_stage_once(monkeypatch):
    ran = []
    monkeypatch.setattr(app, "main", lambda settings: ran.append(settings.stages))
    config = load(None)
    for name in ("worker", *APART):
        assert SERVICES[name](config, None) is None
    stages = [stage for each in ran for stage in each]
    assert sorted(stages) == sorted({*config.streams.stages, *APART})


def test_real_time_services_load_their_code_first_and_all_have_a_priority():
    assert {name for name in REAL_TIME if name in SERVICES} <= set(LOADED)
    assert set(LOADED) <= set(SERVICES) <= set(NICE) | {"actuator"}


def test_an_unknown_service_or_setting_is_one_line(quiet, tmp_path, capsys):
    assert service.run("nobody", None) == CONFIG_EXIT
    assert capsys.readouterr().err.startswith("fabrictime: service 'nobody': expected one of log, history")
    path = tmp_path / "ft.toml"
    path.write_text("[log]\nport = 'x'\n")
    assert service.run("log", path) == CONFIG_EXIT
    assert capsys.readouterr().err.count("\n") == 1


def test_the_exit_code_is_the_services_own(quiet, monkeypatch, tmp_path):
    path = tmp_path / "ft.toml"
    path.touch()
    monkeypatch.setitem(SERVICES, "web", lambda config, nic: {"h1/eth0": 3}.get(nic))
    monkeypatch.setattr(sys, "argv", ["service", "web", str(path), "h1/eth0"])
    assert service.main() == 3
    assert service.run("web", path) == 0
    monkeypatch.setitem(SERVICES, "web", lambda config, nic: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        service.run("web", path)
