"""Base of the models that check files: settings, fleets, topologies, baselines."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """A table of a file. It is not changed after it was read, and has no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def quantity(default: float | None, limits: tuple[float, float], description: str) -> Any:
    """Return the field of a figure between two limits, both included."""
    lower, upper = limits
    return Field(default=default, ge=lower, le=upper, description=description)
