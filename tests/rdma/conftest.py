"""Runs a script in the Soft-RoCE guest, and gives tests what each of its checks found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from native import qp

HERE = Path(__file__).resolve().parent


class Checks:
    """The checks of a script, by name."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self._checks = {each["check"]: each for each in results}

    def found(self, name: str) -> dict[str, Any]:
        """Return the figures of a check that held."""
        assert name in self._checks, f"{name}: not tried, only {', '.join(self._checks)}"
        assert self._checks[name]["ok"], self._checks[name].get("error")
        print(json.dumps(self._checks[name]))
        return self._checks[name]["found"]


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest) -> Checks:
    """Run SCRIPT of the test's module in a fresh guest, within its GUEST_S."""
    spec = importlib.util.spec_from_file_location("fabrictime_rdma_guest", HERE / "guest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes are looked up by their module's name
    spec.loader.exec_module(module)
    if (reason := module.missing()) is not None:
        pytest.skip(f"no Soft-RoCE guest: {reason}")
    qp.library()
    try:
        image = module.image()
    except module.GuestError as error:
        pytest.skip(f"no Soft-RoCE guest: {error}")
    script = f"tests/rdma/inside/{request.module.SCRIPT}"
    outcome = module.run(script, image, timeout_s=request.module.GUEST_S)
    print(outcome.console)
    assert outcome.code == 0, outcome.console
    return Checks(outcome.results)
