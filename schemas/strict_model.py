"""Base class of the models that validate files: settings, fleets, topologies, baselines."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """A model of a table in a file. Instances are immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def quantity(default: float | None, limits: tuple[float, float], description: str) -> Any:
    """Return a model field for a number within `limits`, both inclusive."""
    minimum, maximum = limits
    return Field(default=default, ge=minimum, le=maximum, description=description)
