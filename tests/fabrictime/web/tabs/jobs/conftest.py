"""A job's records, and the choices that a panel passes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fabrictime.job_records import JobRecords


@pytest.fixture
def made(fabric: Any) -> JobRecords:
    """Records of a job of eight ranks on the fabric."""
    return JobRecords(fabric)


@pytest.fixture
def record(made: JobRecords, fabric: Any) -> Any:
    """A diagnosis in which the flow of rank 2 is slow."""
    return made.diagnosis(1, fabric.now_ns, slow=2)


@pytest.fixture
def choices() -> list[dict[str, Any]]:
    """The changes that a panel asked for."""
    return []


@pytest.fixture
def choose(choices: list[dict[str, Any]]) -> Any:
    """Receives a panel's changes."""
    return lambda **changes: choices.append(changes)
