"""Machine types of GPU hosts (SKUs): the patterns that identify them, and the values that a healthy host has.

Hosts check themselves against these values, and the evaluation checks the facts that hosts publish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from schemas.settings_file import read_tables
from schemas.strict_model import StrictModel

FILE: Final = Path(__file__).with_name("skus.toml")
PciId = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]


class Limit(StrictModel):
    """The expected value, minimum or maximum of a fact that a host publishes, and its source."""

    equal: FiniteFloat | None = None
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None
    whole: bool = False
    """Whether the limit applies only to hosts with all GPUs of the type."""
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _has_one(self) -> Limit:
        if sum(value is not None for value in (self.equal, self.minimum, self.maximum)) != 1:
            raise ValueError("expected one of equal, minimum and maximum")
        return self

    def allows(self, value: float) -> bool:
        """Return whether a fact's value satisfies the limit."""
        if self.equal is not None:
            return value == self.equal
        if self.minimum is not None:
            return value >= self.minimum
        return self.maximum is None or value <= self.maximum

    def __str__(self) -> str:
        if self.equal is not None:
            return f"{self.equal:g}"
        return f"at least {self.minimum:g}" if self.minimum is not None else f"at most {self.maximum:g}"


class Sku(StrictModel):
    """A machine type. `gpu`: regular expression for names of its GPUs; `pci`: PCI ids of the GPUs."""

    name: str = ""
    gpu: str = Field(min_length=1)
    pci: tuple[PciId, ...] = ()
    nvlink: Literal["", "subnet", "rack"] = ""
    """Program that sets up NVLink: `subnet` is the fabric manager with a subnet manager, `rack` is IMEX."""
    has_shared_memory: bool = False
    """Whether the kernel uses the GPUs' memory as its own NUMA nodes, also without a program on the GPU."""
    expected: Mapping[str, Limit]

    @model_validator(mode="after")
    def _has_a_pattern(self) -> Sku:
        try:
            re.compile(self.gpu)
        except re.error as error:
            raise ValueError(f"gpu {self.gpu!r}: {error}") from None
        return self

    @property
    def gpus(self) -> int:
        """Number of GPUs of a whole host; 0 if the file does not state it."""
        return int(self.lowest("gpus"))

    def lowest(self, fact: str) -> float:
        """Return the smallest expected value of a fact; 0 if none is stated."""
        limit = self.expected.get(fact)
        return (limit.equal or limit.minimum or 0.0) if limit is not None else 0.0

    def highest(self, fact: str) -> float:
        """Return the largest expected value of a fact; infinity if none is stated."""
        limit = self.expected.get(fact)
        maximum = None if limit is None else limit.maximum
        return float("inf") if maximum is None else maximum

    def is_part(self, gpus: float) -> bool:
        """Return whether `gpus` divides the GPU count of a whole host, as on half or a quarter of a host."""
        return 0 < gpus < self.gpus and self.gpus % gpus == 0


@cache
def load_skus(path: Path = FILE) -> Mapping[str, Sku]:
    """Return the SKUs in a data file, by name. Raises ValueError with a text of one line."""
    try:
        skus = TypeAdapter(dict[str, Sku]).validate_python(read_tables(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"SKU file {path}: {place}: {' '.join(first['msg'].split())}") from None
    except ValueError as error:
        raise ValueError(f"SKU file {path}: {error}") from None
    return {name: sku.model_copy(update={"name": name}) for name, sku in skus.items()}
